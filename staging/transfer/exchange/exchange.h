// Nodes pass chunks on to each other, so that data which all of them need is read from the source once. The nodes form a
// ring, in the order of the step's nodes: each one connects to the node before it, its predecessor, and asks for all
// that it lacks. The predecessor sends each chunk as soon as it has it. So every node sends the data at most once,
// however many nodes there are, and needs as many threads and connections as on two nodes.
//
//   source ──files in turn──► n1 ──► n2 ──► n3 ──► … ──► n1
//
// If some nodes have the data in their caches already, they send it to their successors and the source is not read.
//
// A conversation, over TLS 1.3 with the one-time key of the step (secure_connection.h, service "exchange JOB.STEP"), is in
// lines; bytes follow some of them. A node that has munge also demands a fresh credential of the same user, made for this
// connection (munge_credential.h).
//
//   both       hello NODE CREDENTIAL|-          who this is
//   successor  lists TOPIC SOURCE...            the lists of files of these sources; TOPIC numbers the chains
//              subscribe TOPIC BYTES            and that many bytes: a bit for each chunk that is wanted
//              cancel TOPIC CHUNK...            no longer wanted
//              again TOPIC CHUNK...             arrived damaged
//              read TOPIC CHUNK...              read these from the source instead of me, and send them
//   server     list TOPIC SOURCE BYTES          and that many bytes
//              chunk TOPIC CHUNK ORIGIN BYTES XXH3   and that many bytes; node ORIGIN read them from the source
//              lacks TOPIC CHUNK                cannot be sent
//              idle TOPIC                       I have nothing left to read from the source, and can help
//              alive                            when nothing else was sent for a second
//
// Receiving waits only for the node's own disk, never for sending: chunks that a slow successor has not taken yet are
// read back from the disk. So nodes with little memory cannot wait for each other in a circle. Which node reads which
// chunk from the source: chunk_shares.h and chain_schedule.h. How a predecessor that fails is replaced: subscription.h.
// Indexes that lie beside the data (side_indexes.h) are not exchanged: each node reads them after the data, 40 to 50
// bytes for each record of a TFRecord or RecordIO file.
//
// Damage: a chunk that arrives with a wrong digest is sent again. A node that had the data hashes a file before it gives
// away a part of it, and lacks a damaged one (chunk_provider.h). If a whole file does not match the pack's index, its
// chunks are compared with the source, and the nodes that read other bytes there are named. Data without an index is
// compared between the nodes before it is published. A node whose own source or disk hangs is ended by its parent
// (supervisor.h), and its successor passes it over.
//
// A connection that has not authenticated within some seconds is dropped; of more than 16 of those, the oldest is
// dropped earlier. Memory: eight chunks for successors; the receiving side shares the budget of the copy. The list of
// files (or a pack's index) is in memory once while it is passed on.
//
// Threads: safe from any. One thread accepts connections, and one serves each successor.
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
#include "staging/transfer/exchange/chunk_provider.h"
#include "staging/transfer/exchange/peer_link.h"

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
  /// Bytes of chunks that were sent to other nodes.
  std::uint64_t bytes_sent() const { return bytes_sent_; }
  const PeerTimeouts& timeouts() const { return options_.timeouts; }

  /// Serves a source's list of files, or the chunks of all sources, of a topic until it is withdrawn. Requests may come
  /// earlier; they wait.
  void serve_list(std::size_t topic, std::size_t source, std::shared_ptr<const std::string> list);
  void serve_chunks(std::size_t topic, std::shared_ptr<StreamChunks> chunks);
  /// Stops serving a topic, and breaks connections that are sending its chunks. Returns when no thread uses them any
  /// longer.
  void withdraw(std::size_t topic);

  /// Connects to another node; both authenticate. Throws PeerError.
  std::unique_ptr<PeerLink> connect(const std::vector<std::string>& hosts, int port,
                                    std::uint32_t node_id) const;

 private:
  struct Topic {
    std::map<std::size_t, std::shared_ptr<const std::string>> lists;  ///< by source
    std::shared_ptr<StreamChunks> chunks;
  };
  struct Client;
  struct Feed;
  class ChunksInUse;

  void accept_all();
  void serve_client(Client& client);
  void talk(Client& client, PeerLink& link);
  void take_client(UniqueFd socket);
  bool may_accept();
  void drop_oldest_unauthenticated();
  std::shared_ptr<const std::string> wait_for_list(std::size_t topic, std::size_t source);
  void take_request(Client& client, PeerLink& link, Feed& feed, const std::string& line);
  bool send_next(Client& client, PeerLink& link, Feed& feed);
  bool send_list(PeerLink& link, Feed& feed);
  bool send_chunk(PeerLink& link, Feed& feed, StreamChunks& chunks);
  void send_one(PeerLink& link, std::size_t topic, StreamChunks& chunks, std::size_t chunk);

  Options options_;
  int port_ = 0;
  UniqueFd socket_;
  std::atomic<bool> ended_ = false;
  std::atomic<std::uint64_t> bytes_sent_ = 0;
  ChunkBuffers buffers_;
  std::mutex mutex_;
  std::condition_variable serves_more_;
  std::condition_variable unused_;  // a thread no longer uses the chunks of a topic
  std::map<std::size_t, Topic> topics_;
  std::list<Client> clients_;
  std::thread acceptor_;
};

}  // namespace lockstep::transfer
