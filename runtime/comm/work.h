// The handle of a collective operation.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::comm {

/// When an operation was asked for, began and ended: monotonic nanoseconds, 0 if not yet.
struct WorkTimes {
  std::uint64_t asked_ns = 0;
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  /// When the last rank asked for it, and which rank that was. Known only if all ranks are on one node.
  std::uint64_t all_asked_ns = 0;
  int last_rank = -1;
};

class Work {
 public:
  virtual ~Work() = default;

  /// Whether it has ended, with or without success. Never blocks.
  virtual bool done() const = 0;

  /// Blocks until it has ended. Throws Error, naming operation, rank and node, if it failed. If it does not
  /// end within LOCKSTEP_TIMEOUT, the job ends with a line that names them (comm/failure.h), because an
  /// operation that some rank never joins cannot be cancelled.
  virtual void wait() = 0;

  virtual WorkTimes times() const = 0;
};

using WorkHandle = std::shared_ptr<Work>;

}  // namespace lockstep::comm
