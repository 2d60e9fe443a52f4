// Nodes pass chunks on to each other, so that data which all of them need is read from the source once. Each
// node listens, and connects to each of the others.
//
// A conversation, over TCP: both sides greet each other and prove that they have the one-time key of the step
// (rendezvous_session.h, purpose "exchange-JOB.STEP"). After that each line is "MAC PAYLOAD", so no line can be forged
// or replayed. The bytes after a line are followed by a 16-byte tag that proves who sent them. Data is not encrypted,
// as with NFS. A node that has munge also demands a fresh credential of the same user, made for this conversation
// (munge_credential.h).
//
//   both     hello NODE CREDENTIAL|-          who this is
//   asker    list TOPIC                       the list of a source's files; TOPIC numbers the sources
//            get TOPIC CHUNK                  several may be asked for before an answer comes
//            idle TOPIC                       I have nothing left to read from the source, and can help
//   server   list TOPIC BYTES XXH3            and that many bytes
//            chunk TOPIC CHUNK BYTES XXH3     and that many bytes
//            elsewhere TOPIC CHUNK            I do not have it, and will not: ask the next node
//            alive                            once a second while something is asked for and not here yet
//
// Each chunk has an owner and a successor, which all nodes know (chunk_schedule.h). The owner reads its chunks
// in order; a node that needs a chunk asks the owner, then the successor, then reads the source itself
// (chunk_schedule.h). If some nodes have the object in their caches already, they own all chunks, and the
// source is not read. Indexes that lie beside the data (side_indexes.h) are not exchanged: each node reads
// them after the data, 40 to 50 bytes for each record of a TFRecord or RecordIO file.
//
// Failures: a chunk with a wrong digest is fetched again, from the next node. A node is given up after three such
// chunks, silence for five seconds (a stopped process, a dead machine), a chunk that takes half a minute, or a
// connection that breaks twice: the successors of its chunks then read them and pass them on. A node whose own source
// or disk hangs is ended by its parent (supervisor.h), and the others give it up. If a whole file does not match the
// pack's index, its chunks are compared with the source, and the nodes that sent other bytes are named. Data without an
// index is compared between the nodes before it is published. A node that is also silent at srun's rendezvous fails the
// step there, so no node waits for ever.
//
// A connection that has not authenticated within ten seconds is dropped. If there are too many of those (a quarter of
// the process's descriptors), the oldest is dropped earlier. Memory: eight chunks for the nodes that are served; the
// asking side shares the budget of the copy. The list of files (or a pack's index) is in memory once while it is passed
// on. There is one thread for each node that asks, and one for each node that is asked.
//
// Threads: safe from any.
#pragma once

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

#include "common/files.h"
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

  /// Serves the list of files, or the chunks, of a topic until it is withdrawn. Requests may come earlier;
  /// they wait.
  void serve_list(std::size_t topic, std::shared_ptr<const std::string> list);
  void serve_chunks(std::size_t topic, std::shared_ptr<ChunkProvider> chunks);
  /// Stops serving a topic. Returns when no thread uses its list or chunks any longer.
  void withdraw(std::size_t topic);

  /// Connects to another node; both authenticate. Throws PeerError.
  std::unique_ptr<PeerLink> connect(const std::vector<std::string>& hosts, int port,
                                    std::uint32_t node_id) const;

 private:
  struct Topic {
    std::shared_ptr<const std::string> list;
    std::shared_ptr<ChunkProvider> chunks;
  };
  struct Request;
  struct Client;

  void accept_all();
  void serve_client(Client& client);
  void talk(PeerLink& link, std::uint32_t node);
  void take_client(UniqueFd socket);
  bool may_accept();
  void drop_oldest_unauthenticated();
  bool answer(PeerLink& link, std::uint32_t node, const Request& request);

  Options options_;
  int port_ = 0;
  UniqueFd socket_;
  std::atomic<bool> ended_ = false;
  ChunkBuffers buffers_;
  std::mutex mutex_;
  std::shared_mutex serving_;  // shared by the threads that use what is served
  std::map<std::size_t, Topic> topics_;
  std::list<Client> clients_;
  std::thread acceptor_;
};

}  // namespace lockstep::transfer
