// Measures how long batches take to build and to use, and computes how many workers and batches ahead are
// enough.
//
// Threads: add_build() from any thread; the rest from the training thread.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/job_limits.h"
#include "runtime/data/loader_options.h"
#include "runtime/profile/step_timer.h"

namespace lockstep::data {

/// The totals of the calling thread; `build_ns` stays 0.
profile::LoaderWork work_of_thread();

/// A line if the batches of this many equal loaders on a node may need more memory than there is.
std::optional<std::string> advice_on_memory(const LoaderMemory& memory, int loaders,
                                            const MemoryLimit& limit);

class LoaderMeter {
 public:
  /// Call when a worker has built a batch in this time.
  void add_build(std::uint64_t nanoseconds);

  /// Call when the loop requests a batch: the time since the last batch was the use of that batch.
  void on_request();
  /// Call when the loop has the batch, after this wait. The wait for the `first` batch of a loop is not
  /// counted, because it cannot be avoided.
  void on_batch(std::uint64_t waited_ns, bool first);

  /// The advice without `memory`.
  LoaderAdvice advice() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t builds_ = 0;
  std::uint64_t build_ns_ = 0;
  std::uint64_t longest_build_ns_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t use_ns_ = 0;
  std::uint64_t waited_ns_ = 0;
  std::uint64_t use_began_ns_ = 0;  // when the loop got the current batch; 0: none yet
};

}  // namespace lockstep::data
