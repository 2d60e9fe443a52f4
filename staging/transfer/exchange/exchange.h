// Serves the successor in the ring (docs/design/ring.md), and connects to the predecessor.
//
// A conversation, over TLS 1.3 with the one-time key of the step (secure_connection.h, service "exchange JOB.STEP"), is in
// lines; bytes follow some of them. A node that has munge also demands a fresh credential of the same user, made for this
// connection. RING numbers the rings of a step, GENERATION the successor's connections.
//
//   both       hello NODE CREDENTIAL|-          who this is
//   successor  lists RING GENERATION SOURCE...  the lists of files of these sources
//              want RING GENERATION BYTES       and that many bytes: a bit for each chunk that is wanted
//              lane RING GENERATION             another connection of the same generation, for chunks
//              cancel RING CHUNK...             I read these from the source
//              read RING CHUNK...               you read these from the source instead of me, and send them
//   server     list RING SOURCE OFFSET TOTAL BYTES   and that many bytes: a piece of a list of TOTAL bytes
//              chunk RING CHUNK ORIGIN IDLE BYTES XXH3   and that many bytes; node ORIGIN read them from the source;
//                                                        IDLE is 1 if I have nothing left to read, and can help
//              lacks RING CHUNK                      cannot be sent
//              gone RING                             I have left the ring
//              alive RING HERE IDLE                  when nothing else was sent for a while; HERE wanted chunks are here
//
// A connection that has not authenticated within some seconds is dropped; of more than 16 of those, the oldest is
// dropped earlier. Memory: one chunk for each connection of the successor; the receiving side shares the budget of the copy.
//
// Threads: safe from any, except that rounds come one at a time. One thread accepts connections, and one serves each connection.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
#include "common/leaf/network.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/exchange/peer_link.h"
#include "staging/transfer/exchange/ring.h"

namespace lockstep::transfer {

class Exchange {
 public:
  /// Name of the threads that serve other nodes, as `top -H` shows it.
  static constexpr const char* kThreadName = "stage-serve";

  struct Options {
    std::string key;
    std::string step;  ///< "JOB.STEP"
    std::uint32_t node_id = 0;
    int first_port = 0;  ///< 0: any
    int last_port = 0;
    /// Nodes are reached at their address in the first of these that they have.
    std::vector<Subnet> peer_networks = {};
    std::size_t chunk_bytes = 0;
    PeerTimeouts timeouts{};
  };

  /// Listens. Throws Error if no port is free.
  explicit Exchange(const Options& options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int port() const { return port_; }
  const PeerTimeouts& timeouts() const { return options_.timeouts; }

  /// Serves a ring until it is withdrawn. Requests may come earlier; they wait.
  void serve(std::size_t number, std::shared_ptr<Ring> ring);
  /// Returns when no thread uses the ring's chunks any longer.
  void withdraw(std::size_t number);

  /// Connects to another node; both authenticate. Throws PeerError.
  std::unique_ptr<PeerLink> connect(const RingPart::Peer& peer) const;

 private:
  struct Client;
  struct Feed;

  void accept_all();
  void serve_client(Client& client);
  void talk(PeerLink& link);
  void take_client(UniqueFd socket);
  bool may_accept();
  void drop_oldest_unauthenticated();
  void take_request(PeerLink& link, Feed& feed, const std::string& line);
  void wait_for_ring(Feed& feed);
  bool send_next(PeerLink& link, Feed& feed);

  Options options_;
  int port_ = 0;
  UniqueFd socket_;
  std::atomic<bool> ended_ = false;
  ChunkBuffers buffers_;
  std::mutex mutex_;
  std::condition_variable serves_more_;
  std::map<std::size_t, std::shared_ptr<Ring>> rings_;
  std::list<Client> clients_;
  std::thread acceptor_;
};

/// Nodes of the step run different releases, which do not cooperate. All of them see that, and each can read the source
/// alone.
class OtherRelease : public Error {
 public:
  using Error::Error;
};

class PeerGroup {
 public:
  /// Opens the exchange and tells the rendezvous where it is: at this node's address in `options.peer_networks`, or else
  /// where srun sees this node. `names` has the name of each node of the step, for messages and as this node's address.
  /// `rendezvous` must outlive this object. Throws Error if the rendezvous is lost.
  PeerGroup(Rendezvous& rendezvous, const Exchange::Options& options, std::vector<std::string> names);

  std::uint32_t self() const { return self_; }
  bool uses_peer_network() const { return uses_peer_network_; }
  Exchange& exchange() { return exchange_; }
  Rendezvous& rendezvous() { return rendezvous_; }

  /// As Rendezvous::gather(), by node, without the nodes that have left or failed.
  std::map<std::uint32_t, nlohmann::json> gather(const std::string& round, nlohmann::json data);

  /// The first round: adds the release of this node to `data`, and compares those of all nodes. Throws OtherRelease as
  /// described above.
  std::map<std::uint32_t, nlohmann::json> hello(nlohmann::json data);

  std::string name(std::uint32_t node) const;
  /// "JOB.STEP"
  const std::string& step() const { return step_; }

 private:
  Rendezvous& rendezvous_;
  std::uint32_t self_;
  std::string step_;
  Exchange exchange_;
  bool uses_peer_network_ = false;
  std::vector<std::string> names_;
};

}  // namespace lockstep::transfer
