// Decides when a node connects to its predecessor again, and when the predecessor is lost. It counts the time in which this
// process runs (running_time.h), as its caller tells it; see ring_node.h.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

namespace lockstep::transfer {

struct PeerTimeouts {
  std::chrono::milliseconds quiet{5000};       ///< without a byte: the connection is made again
  std::chrono::milliseconds retry{1000};       ///< between two tries
  std::chrono::milliseconds lost{30'000};      ///< without a byte: the predecessor is lost
  std::chrono::milliseconds stalled{300'000};  ///< it has wanted chunks and sends none: it is lost
  std::chrono::milliseconds look{20};  ///< between two looks at what the other side, or another thread, wants
};

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

}  // namespace lockstep::transfer
