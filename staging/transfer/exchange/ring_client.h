// Takes all that a node lacks from its predecessor in a ring (exchange.h): first the lists of files, then the chunks.
//
// A connection that breaks is made again. The predecessor is lost if it sends nothing for some time (PeerWatch), if srun
// says that it has left, if it has left the ring, refuses this node or breaks the protocol. Then this node reads what it lacks
// from the source. Time in which this process is stopped does not count.
//
// Threads: one calls get_lists() and then get_chunks(); others may call get_chunks_too() meanwhile.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "common/clock.h"
#include "staging/pack/digest.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/exchange/ring_node.h"
#include "staging/transfer/source_lookup.h"

namespace lockstep::transfer {

class RingClient {
 public:
  struct Options {
    std::size_t number = 0;  ///< of the ring
    const RingPart& part;
    const PutContext& context;  ///< of any source: for memory and notes
    /// Takes note of a chunk that arrived, before Ring::arrived().
    std::function<void(const CheckedChunk&)> count;
    std::size_t max_lanes = 1;  ///< connections for chunks
  };

  /// The references must outlive this object.
  RingClient(Ring& ring, PeerGroup& peers, Options options);

  /// Returns when all lists are here, or when this node must make those that are missing.
  void get_lists();
  /// Then, after Ring::begin_chunks(): returns when no chunk is expected from the predecessor any longer.
  void get_chunks();
  /// Receives chunks on another connection, number `lane` from 1 on, if one connection is not fast enough; returns as
  /// get_chunks() does.
  void get_chunks_too(std::size_t lane);
  /// Chunks that the predecessor could not send, or that arrived damaged.
  const std::set<std::size_t>& bad_chunks() const { return bad_; }
  /// Lets the other threads return.
  void stop();

 private:
  const PeerTimeouts& timeouts() const { return peers_.exchange().timeouts(); }
  std::unique_ptr<PeerLink> connect() { return peers_.exchange().connect(options_.part.predecessor); }
  bool has_left() { return peers_.rendezvous().has_left(options_.part.predecessor.node); }
  bool done();
  void follow();
  std::string try_once();
  void lose(const std::string& why);
  void talk(PeerLink& link);
  void subscribe(PeerLink& link);
  void send_changes(PeerLink& link);
  void check_time();
  void heard(bool progress);
  void take_line(PeerLink& link, const std::string& line, bool first);
  void take_list(PeerLink& link, const std::vector<std::string>& words, bool first);
  void take_chunk(PeerLink& link, const std::vector<std::string>& words, bool first);
  void note_bad(std::size_t chunk);
  void looked(bool came, std::chrono::milliseconds silent, bool first, std::uint64_t generation);
  void add_lane_if_slow();

  Ring& ring_;
  PeerGroup& peers_;
  Options options_;
  bool chunks_ = false;  // the lists are here
  bool idle_ = false;    // the predecessor can help
  std::atomic<bool> lost_ = false;
  std::string why_;  // the last connection broke
  PeerWatch watch_;
  RunningTime time_;
  std::atomic<std::uint64_t> generation_ = 0;  // of the connections
  std::atomic<std::uint64_t> broken_ = 0;      // the last generation that lost a further connection
  std::atomic<std::size_t> lanes_;
  std::atomic<bool> heard_ = false;  // on a further connection
  std::mutex bad_mutex_;
  std::set<std::size_t> bad_;
  std::chrono::nanoseconds wall_begin_{0}, cpu_begin_{0};
};

}  // namespace lockstep::transfer
