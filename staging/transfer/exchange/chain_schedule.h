// Tracks, for one node of a chain (exchange.h), which chunks of the stream are here, which ones this node reads from the
// source, and which ones it takes from its predecessor.
//
// Every chunk that nobody has is dealt to one reader (chunk_shares.h). A node takes all other chunks that it lacks from
// its predecessor, so a chunk goes around the ring from its reader until it reaches the reader's predecessor. If a
// predecessor is lost, this node reads what the lost one had to read and had not passed on: a lost node sends to its
// successor only, so no other node has these chunks. A reader that has nothing left to read is idle, and its successor
// hands over chunks from the end of its own share.
//
// Threads: safe from any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "staging/rendezvous/chain_directory.h"

namespace lockstep::transfer {

class ChainSchedule {
 public:
  using Node = std::uint32_t;  ///< of the step

  /// `readers` has the place in the chain of the reader of each chunk, or kNoReader (chunk_shares.h). `missing` tells
  /// whether this node lacks a chunk.
  ChainSchedule(ChainNode self, std::vector<std::uint32_t> readers,
                const std::function<bool(std::size_t chunk)>& missing, std::size_t lanes = 1);

  /// The number of chunks.
  std::size_t size() const { return states_.size(); }

  // For the threads that read the source:

  /// The next chunk to read from the source. Waits until there is one; nullopt when all chunks are here, or after
  /// stop().
  std::optional<std::size_t> take_own();
  /// A chunk is stored that `origin` read from the source.
  void stored(std::size_t chunk, Node origin);

  // For the threads that receive from the predecessor, one for each lane, a connection that carries every n-th chunk:

  /// The chunks of a lane to ask a new predecessor for, as bits: the lowest bit of the first byte is chunk 0.
  std::vector<std::byte> subscribe(std::size_t lane);
  /// Chunks that were asked for, and that this node reads from the source since then.
  std::vector<std::size_t> take_cancelled(std::size_t lane);
  /// A chunk arrives. False if it is here already, or if this node reads it from the source now.
  bool begin_receiving(std::size_t chunk);
  /// It did not arrive after all.
  void not_received(std::size_t chunk);
  /// This node reads from the source what the node at this place of the chain had to read.
  void replace(std::uint32_t lost_place);
  /// This node reads all chunks that it lacks, from `begin` to `end`, without the last.
  void read_all(std::size_t begin, std::size_t end);
  /// The predecessor does not have this chunk and will not get it: this node reads it.
  void read_instead(std::size_t chunk);
  /// Chunks of this node's share that the predecessor, which is idle, must read instead.
  std::vector<std::size_t> hand_over(std::size_t lane, std::uint32_t predecessor_place);

  // For threads that send to successors:

  /// Chunks are here in some order, and `n` counts them from 0. Waits until the n-th is here, or for this long.
  std::optional<std::size_t> wait_for(std::size_t n, int milliseconds);
  /// A successor hands over chunks. This node reads those that it lacks.
  void take_over(std::span<const std::size_t> chunks);
  /// Whether this node has no chunk left that it must read and has not begun, although chunks are missing.
  bool idle() const;
  /// The node that read a chunk from the source; this one if the chunk was here before.
  Node origin(std::size_t chunk) const;

  bool is_here(std::size_t chunk) const;

  /// Whether all chunks that are not here are being read or stored by this node: none is expected from the predecessor.
  bool all_begun() const;
  bool finished() const;
  void stop();
  /// Waits until all chunks are here, or for this long.
  void wait_for_end(int milliseconds) const;
  void wait_until_end() const;

 private:
  enum class State : std::uint8_t { missing, own, begun, here };

  void make_own(std::size_t chunk);
  void end();
  std::size_t lanes() const { return cancelled_.size(); }
  std::size_t lane_of(std::size_t chunk) const { return chunk % lanes(); }
  std::optional<std::size_t> last_own(std::size_t lane) const;
  bool ended() const { return stopped_ || remaining_ == 0; }

  const ChainNode self_;
  mutable std::mutex mutex_;
  std::condition_variable arrived_;        // a chunk
  std::condition_variable to_read_;        // own_ or own_or_received_ grew, or all chunks are here
  mutable std::condition_variable ended_;  // all chunks are here
  std::vector<State> states_;
  std::vector<std::uint32_t>
      readers_;                   // places of the nodes that must read a chunk, as far as this node knows
  std::vector<Node> origins_;     // of chunks that are here
  std::vector<bool> subscribed_;  // the predecessor was asked for these chunks
  std::set<std::size_t> own_;     // to read, in order
  // To read from the end: they were asked for too, and the predecessor may have the first ones of them.
  std::set<std::size_t> own_or_received_;
  std::set<std::size_t> handed_over_;
  std::vector<std::vector<std::size_t>> cancelled_;  // by lane
  std::vector<std::size_t> arrivals_;
  std::size_t remaining_ = 0;
  std::size_t begun_ = 0;  // of the remaining ones
  bool stopped_ = false;
};

}  // namespace lockstep::transfer
