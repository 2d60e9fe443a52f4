// Measures how long batches take to build and to use, and says how many workers and batches ahead that needs.
//
// Threads: built() from any thread; the rest from the training thread.
#pragma once

#include <cstdint>
#include <mutex>

#include "runtime/data/loader_options.h"

namespace lockstep::data {

class LoaderMeter {
 public:
  /// A worker took this long to build a batch.
  void built(std::uint64_t nanoseconds);

  /// The loop asks for a batch; what it did since it got the last one was its use.
  void asked();
  /// It has it, after waiting so long. `first`: of a start, whose wait nothing could have spared.
  void got(std::uint64_t waited_ns, bool first);

  /// Workers and batches ahead that suffice; memory is left out.
  LoaderAdvice advice() const;

 private:
  mutable std::mutex mutex_;
  std::uint64_t builds_ = 0;
  std::uint64_t build_ns_ = 0;
  std::uint64_t longest_build_ns_ = 0;
  std::uint64_t uses_ = 0;
  std::uint64_t use_ns_ = 0;
  std::uint64_t waited_ns_ = 0;
  std::uint64_t got_at_ns_ = 0;  // 0: nothing is in use
};

}  // namespace lockstep::data
