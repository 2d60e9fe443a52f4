// Decides what one node of a ring does with the chunks of the data (exchange.h): which ones it reads from the source, which
// ones it takes from its predecessor, and which ones it sends to its successor. It has no threads, clocks, sockets or files:
// ring.h runs it for a step, and tests/simulation plays many of them from a seed.
//
// Every chunk that no node has is dealt to one reader (chunk_shares.h). A node asks its predecessor for all other chunks that
// it lacks, so a chunk goes around the ring from its reader until it reaches the reader's predecessor. A node that has read
// its share is idle; its successor, if it is slower, hands over chunks from the end of its own share. Each chunk is handed
// over at most once, by the reader to which it was dealt, so chunks cannot go around in circles.
//
// A node that loses its predecessor reads all that it lacks from the source, and keeps serving its successor.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <vector>

namespace lockstep::transfer {

class RingNode {
 public:
  /// `readers` has the place in the ring of the reader of each chunk, or kNoReader (chunk_shares.h). `missing` tells whether
  /// this node lacks a chunk.
  RingNode(std::uint32_t place, std::uint32_t nodes, std::vector<std::uint32_t> readers,
           const std::function<bool(std::size_t chunk)>& missing);

  std::size_t size() const { return states_.size(); }
  bool has(std::size_t chunk) const { return chunk < size() && states_[chunk] == State::here; }
  /// All chunks are stored.
  bool finished() const { return lacking_ == 0; }
  /// All chunks that are not stored are being read or stored here: none is expected from the predecessor.
  bool all_begun() const { return begun_ == lacking_; }
  /// It has begun all that it must read, and chunks are missing.
  bool idle() const { return own_.empty() && lacking_ > 0; }

  // The source.

  /// The next chunk to read, if there is one now.
  std::optional<std::size_t> next_read();

  // The predecessor.

  /// A new connection: the chunks to ask for, as bits; the lowest bit of the first byte is chunk 0.
  std::vector<std::byte> wanted();
  /// Chunks that were asked for, and that this node reads from the source since then.
  std::vector<std::size_t> take_cancelled();
  /// A chunk arrives. False if it is here already, or if this node reads it.
  bool begin_receiving(std::size_t chunk);
  /// The connection broke meanwhile.
  void not_received(std::size_t chunk);
  /// It arrived with a wrong digest: this node reads it from the source.
  void arrived_damaged(std::size_t chunk);
  /// The predecessor cannot send it: this node reads it.
  void predecessor_lacks(std::size_t chunk);
  /// It is idle. Returns chunks of this node's share that it must read instead.
  std::vector<std::size_t> hand_over();
  /// A new connection, after wanted(): chunks that were handed over and are not here. The predecessor may not know of them; one
  /// that does may have read them already, so this node must not.
  std::vector<std::size_t> handed_over();
  void predecessor_lost();

  // A chunk that was read or received.

  /// It is in memory and its digest is right: it may be sent.
  void checked(std::size_t chunk);
  void stored(std::size_t chunk);

  // The successor.

  /// A new connection asks for these chunks.
  void successor_wants(std::span<const std::byte> bits);
  /// It reads this chunk from the source.
  void successor_reads(std::size_t chunk);
  /// This node reads this chunk for it.
  void successor_hands_over(std::size_t chunk);
  /// The next chunk to send. It counts as sent: a broken connection asks again.
  std::optional<std::size_t> next_send();
  /// Chunks that are here, wanted, and not sent.
  std::size_t to_send() const { return to_send_; }

 private:
  enum class State : std::uint8_t {
    missing,  // comes from the predecessor
    own,      // this node will read it
    begun,    // is being read or received
    checked,  // is in memory and being stored
    here
  };

  bool available(std::size_t chunk) const { return states_[chunk] >= State::checked; }
  void make_own(std::size_t chunk);
  void begin(std::size_t chunk);

  bool alone_;  // no predecessor, or it is lost
  std::vector<State> states_;
  std::vector<bool> asked_;              // the predecessor, for these chunks
  std::set<std::size_t> own_;            // chunks to read, in order
  std::set<std::size_t> may_hand_over_;  // of these: dealt to this node, and not handed over yet
  std::vector<std::size_t> handed_over_;
  std::vector<std::size_t> cancelled_;
  std::vector<std::size_t> arrivals_;  // available chunks, in the order in which they became so
  std::vector<bool> wanted_;           // by the successor
  std::size_t next_ = 0;               // in arrivals_
  std::size_t to_send_ = 0;
  std::size_t lacking_ = 0;  // not stored
  std::size_t begun_ = 0;    // of these
};

}  // namespace lockstep::transfer
