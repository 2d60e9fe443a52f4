// Which operations are known to have ended: for each queue (a stream or a host thread) the number of the last one.
//
// Threads: values.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace lockstep::simulated {

/// An operation's identity. `number` counts the operations of its queue from 1.
struct Stamp {
  std::size_t queue = 0;
  std::uint64_t number = 0;

  bool operator==(const Stamp&) const = default;
};

class VectorClock {
 public:
  void join(const VectorClock& other) {
    if (last_.size() < other.last_.size()) last_.resize(other.last_.size());
    for (std::size_t i = 0; i < other.last_.size(); ++i) last_[i] = std::max(last_[i], other.last_[i]);
  }
  void add(Stamp stamp) {
    if (last_.size() <= stamp.queue) last_.resize(stamp.queue + 1);
    last_[stamp.queue] = std::max(last_[stamp.queue], stamp.number);
  }
  bool knows(Stamp stamp) const { return stamp.queue < last_.size() && last_[stamp.queue] >= stamp.number; }

 private:
  std::vector<std::uint64_t> last_;
};

}  // namespace lockstep::simulated
