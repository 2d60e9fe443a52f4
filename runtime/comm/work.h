// The handle of an operation that ranks do together.
//
// Threads: any thread may ask and wait.
#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::comm {

/// When an operation was asked for, began and ended: monotonic nanoseconds, 0 for what has not happened yet.
struct WorkTimes {
  std::uint64_t asked_ns = 0;
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  /// When the last rank asked for it, and which; known for ranks of one node, whose clock is the same.
  std::uint64_t all_asked_ns = 0;
  int last_rank = -1;
};

class Work {
 public:
  virtual ~Work() = default;

  /// Whether it has ended, well or not. Never blocks.
  virtual bool done() const = 0;

  /// Blocks until it has ended. Throws Error naming operation, rank and node when it failed. When it does not
  /// end within LOCKSTEP_TIMEOUT the job is ended with a line that names the same (comm/failure.h): an
  /// operation that some rank never joins cannot be taken back.
  virtual void wait() = 0;

  virtual WorkTimes times() const = 0;
};

using WorkHandle = std::shared_ptr<Work>;

}  // namespace lockstep::comm
