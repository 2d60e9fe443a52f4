// Nodes pass chunks on to each other: what all of them need is read from the source once. Each node listens,
// and connects to each of the others.
//
// A conversation, over TCP: both sides greet and prove that they have the step's one-time key
// (rendezvous_session.h, purpose "exchange-JOB.STEP"); after that each line is "MAC PAYLOAD", so that none
// can be forged or replayed, and a line that announces bytes is followed by them as they are. The data is in
// the clear, as it is on the way from an NFS server. Where a node has munge, it wants a fresh credential of
// the same user besides, made for this conversation (peer_proof.h).
//
//   both     hello NODE CREDENTIAL|-          who this is
//   asker    list TOPIC                       the list of a source's files; a topic is a source's place in
//   the call
//            get TOPIC CHUNK                  several may be asked for before an answer comes
//            cede TOPIC NODE                  hand over to me, that node, chunks that you have not begun
//   server   list TOPIC BYTES XXH3            and that many bytes
//            chunk TOPIC CHUNK BYTES XXH3     and that many bytes
//            moved TOPIC CHUNK NODE           ask that node for it
//            ceded TOPIC CHUNK...             they are yours to read; none where there are none
//            gone TOPIC CHUNK                 it cannot be had here
//            alive                            now and then while something is asked for that is not there yet
//
// Who reads what: chunk c belongs to member c mod N, each reads its own from the source, in order, and asks
// the owners for the others. Where some nodes have the object in their cache already, all chunks belong to
// them, and the source is not read. A node that has read all of its own asks the slowest to cede. Whoever is
// asked for a chunk that it neither has nor reads nor has ceded reads it from then on: others have given up
// whom it waits for, and were it to wait on, they might wait in a circle (chunk_work.h).
// Indexes that lie beside the data (side_indexes.h) are no part of it: each node reads them itself, after the
// data; of N nodes that is N times 40 to 50 bytes for each record of a TFRecord or RecordIO file.
//
// What goes wrong: a chunk whose digest does not fit is asked for no more there, but read from the source;
// three of them, silence for five seconds (a stopped process, a dead machine), a chunk that takes half a
// minute, or a connection that breaks twice, and the node is given up: each of its chunks is read from the
// source by the next member in a ring, and passed on from there. A node whose own calls at the source or
// at its disk do not come back (hang_watch.h) leaves, and is given up so by the others. When a whole file
// does not match the pack's index, its chunks are compared with the source, and who sent other bytes is
// named. Data that no index describes is compared between the nodes before it is published. Nobody waits for
// ever, since whoever is silent at srun's rendezvous too fails the step there.
//
// Strangers: who has not proved itself within ten seconds is dropped, and the oldest of those before that
// when there are many (a quarter of the process's descriptors at most).
//
// Memory: eight chunks for those who are served; the asking side takes part in the copy's own budget. The
// list of files, a pack's index, is in memory once while it is passed on. A thread for each node that asks,
// and for each that is asked.
//
// Threads: an Exchange may be used from several.
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
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/exchange/exchange_link.h"
#include "staging/transfer/exchange/shelf.h"

namespace lockstep::transfer {

class Exchange {
 public:
  /// Of the threads that serve other nodes, as `top -H` shows it.
  static constexpr const char* kThreadName = "stage-serve";

  struct Options {
    std::string key;
    std::string step;  ///< "JOB.STEP"
    std::uint32_t node_id = 0;
    int first_port = 0;  ///< 0: any
    int last_port = 0;
    std::size_t chunk_bytes = 0;
    PeerPatience patience{};
  };

  /// Listens. Throws Error where no port is free.
  explicit Exchange(const Options& options);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  int port() const { return port_; }
  const PeerPatience& patience() const { return options_.patience; }

  /// Serves a topic until it is withdrawn. Whoever asked earlier has waited for it.
  void serve(std::size_t topic, std::shared_ptr<Shelf> shelf);
  /// Returns when nobody is being served from it any more.
  void withdraw(std::size_t topic);

  /// Closes all connections and takes none any more, so that the others have what this node was to give from
  /// elsewhere. From any thread; also while another works.
  void leave();

  /// Connects to another node; both prove themselves. Throws PeerError.
  std::unique_ptr<Link> connect(const std::vector<std::string>& hosts, int port, std::uint32_t node_id) const;

 private:
  struct Asked;
  struct Client;

  void accept_all();
  void serve_client(Client& client);
  void talk(Link& link);
  void take_client(UniqueFd socket);
  bool has_room_for_a_stranger();
  void drop_oldest_stranger();
  bool answer(Link& link, const Asked& asked);
  std::shared_ptr<Shelf> shelf(std::size_t topic);

  Options options_;
  int port_ = 0;
  UniqueFd socket_;
  std::atomic<bool> ended_ = false;
  ChunkBuffers buffers_;
  std::mutex mutex_;
  std::condition_variable returned_;
  std::map<std::size_t, std::shared_ptr<Shelf>> shelves_;
  std::list<Client> clients_;
  std::thread acceptor_;
};

}  // namespace lockstep::transfer
