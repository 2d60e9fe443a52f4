// Decides what one node of a ring does (docs/design/ring.md): PeerWatch for a predecessor that says nothing, ListRelay for the
// lists of files, RingNode for the chunks. They have no threads, clocks, sockets or files: ring.h runs them for a step, and tests/simulation plays many from a seed.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace lockstep::transfer {

struct PeerTimeouts {
  std::chrono::milliseconds quiet{5000};       ///< without a byte: the connection is made again
  std::chrono::milliseconds retry{1000};       ///< between two tries
  std::chrono::milliseconds lost{30'000};      ///< without a byte: the predecessor is lost
  std::chrono::milliseconds stalled{300'000};  ///< it has wanted chunks and sends none: it is lost
  std::chrono::milliseconds look{20};  ///< between two looks at what the other side, or another thread, wants
};

/// Decides when a node connects to its predecessor again, and when the predecessor is lost. Its caller gives the
/// time, and leaves out what passes while the process is stopped (common/clock.h).
class PeerWatch {
 public:
  enum class Next {
    wait,       ///< for bytes; the connection is there
    retry,      ///< wait before the next try
    connect,    ///< now
    silent,     ///< lost
    sends_none  ///< lost
  };

  explicit PeerWatch(const PeerTimeouts& timeouts) : timeouts_(timeouts), since_try_(timeouts.retry) {}

  /// Time has passed. Returns what to do next.
  Next tick(std::chrono::milliseconds passed) {
    silent_ += passed;
    since_try_ += passed;
    stalled_ = has_chunks_ ? stalled_ + passed : std::chrono::milliseconds(0);
    if (silent_ >= timeouts_.lost) return Next::silent;
    if (stalled_ >= timeouts_.stalled) return Next::sends_none;
    if (connected_ && (silent_ < timeouts_.quiet || since_try_ < timeouts_.quiet)) return Next::wait;
    return since_try_ >= timeouts_.retry ? Next::connect : Next::retry;
  }
  void tries() { since_try_ = std::chrono::milliseconds(0); }
  /// It must send something soon: one that only lets this node connect repeatedly is silent too.
  void connected() {
    connected_ = true;
    if (!std::exchange(silent_since_connected_, true))
      silent_ = std::min(silent_, timeouts_.lost - timeouts_.quiet);
  }
  void broken() { connected_ = false; }
  void heard() {
    silent_ = std::chrono::milliseconds(0);
    silent_since_connected_ = false;
  }
  /// It sent a piece of a list, or a chunk.
  void progressed() { stalled_ = std::chrono::milliseconds(0); }
  /// It says how many of the wanted chunks it has.
  void has(std::size_t chunks) { has_chunks_ = chunks > 0; }

 private:
  PeerTimeouts timeouts_;
  std::chrono::milliseconds silent_{0};
  std::chrono::milliseconds stalled_{0};
  std::chrono::milliseconds since_try_;
  bool connected_ = false;
  bool silent_since_connected_ = false;
  bool has_chunks_ = false;
};

class ListRelay {
 public:
  static constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;

  enum class From {
    here,        ///< this node makes it, from its copy or from the source
    predecessor  ///< it comes along the ring
  };

  /// Of each source.
  explicit ListRelay(const std::vector<From>& from);

  /// The next list that this node must make, if there is one.
  std::optional<std::size_t> next_to_make();
  /// It has that many bytes.
  void made(std::size_t source, std::uint64_t bytes);

  /// All lists are here.
  bool complete() const;
  /// A new connection: the lists to ask for, from their beginning.
  std::vector<std::size_t> wanted() const;
  /// A piece arrives, after which the list has offset + bytes. False if it does not continue the list. A piece at 0 begins it
  /// anew.
  bool arrived(std::size_t source, std::uint64_t offset, std::uint64_t bytes, std::uint64_t total);
  /// This node makes the lists that are not complete.
  void predecessor_lost();

  struct Piece {
    std::size_t source = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::uint64_t total = 0;
  };
  /// The successor asks for a list.
  void successor_wants(std::size_t source);
  std::optional<Piece> next_send();
  bool can_send() const;

 private:
  struct List {
    From from = From::predecessor;
    bool making = false;
    std::optional<std::uint64_t> total;
    std::uint64_t here = 0;
    bool asked = false;  // by the successor
    std::optional<std::uint64_t> sent;

    bool complete() const { return total == here; }
    bool can_send() const { return asked && total && (!sent || *sent < here); }
  };

  std::vector<List> lists_;
};

class RingNode {
 public:
  /// `readers` has the place in the ring of the reader of each chunk, or kNoReader (chunk_plan.h). `missing` tells whether
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
