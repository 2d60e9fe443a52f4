// Nodes pass chunks on to each other, so that data which all of them need is read from the source once. All nodes of the
// step form one ring for all sources, in their order: each one connects to the node before it, its predecessor, and asks for
// all that it lacks. The predecessor sends each chunk as soon as it has it. So every node sends the data at most once,
// however many nodes there are, and needs as many threads and connections as on two nodes.
//
//   source ──shares──► n1 ──► n2 ──► n3 ──► … ──► n1
//
// If some nodes have the data in their caches already, it goes around the ring from them, and the source is not read.
//
// A conversation, over TLS 1.3 with the one-time key of the step (secure_connection.h, service "exchange JOB.STEP"), is in
// lines; bytes follow some of them. A node that has munge also demands a fresh credential of the same user, made for this
// connection (munge_credential.h). RING numbers the rings of a step, GENERATION the successor's connections.
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
// The decisions of a node: ring_node.h for chunks, list_relay.h for lists, peer_watch.h for a predecessor that says nothing.
// Receiving waits only for the node's own disk, never for sending: a chunk that a slow successor has not taken soon
// after it is stored is read back from the disk. So nodes with little memory cannot wait for each other in a circle. Indexes that lie
// beside the data (side_indexes.h) are not exchanged: each node reads them after the data, 40 to 50 bytes for each record of
// a TFRecord or RecordIO file.
//
// Damage: objects keep the digest of every chunk. A holder sends that digest with the chunk, and the receiver compares it
// before it passes the chunk on; if it differs, it alone reads the chunk from the source, and names the sender in the round
// of contents, so that the sender checks its copy. If a whole file does not match the pack's index, its chunks are compared
// with the source, and the nodes that read other bytes there are named. Data without an index is compared between the nodes
// before it is published.
//
// A connection that has not authenticated within some seconds is dropped; of more than 16 of those, the oldest is
// dropped earlier. Memory: one chunk for each connection of the successor; the receiving side shares the budget of the copy.
//
// Threads: safe from any. One thread accepts connections, and one serves each connection.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
#include "common/leaf/subnet.h"
#include "staging/transfer/copy/chunk_buffers.h"
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

  /// Closes all connections and serves nothing from then on.
  void end();

  int port() const { return port_; }
  const PeerTimeouts& timeouts() const { return options_.timeouts; }

  /// Serves a ring until it is withdrawn. Requests may come earlier; they wait.
  void serve(std::size_t number, std::shared_ptr<Ring> ring);
  /// Returns when no thread uses the ring's chunks any longer.
  void withdraw(std::size_t number);

  /// Connects to another node; both authenticate. Throws PeerError.
  std::unique_ptr<PeerLink> connect(const std::vector<std::string>& hosts, int port,
                                    std::uint32_t node_id) const;

 private:
  struct Client;
  struct Feed;

  void accept_all();
  void serve_client(Client& client);
  void talk(PeerLink& link);
  void take_client(UniqueFd socket);
  bool may_accept();
  void drop_oldest_unauthenticated();
  std::shared_ptr<Ring> ring(std::size_t number);
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

}  // namespace lockstep::transfer
