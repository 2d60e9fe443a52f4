// Tells lockstep-report what a start of lockstep-run has loaded: a line in the file restarts-JOB.jsonl of the report's
// folder. Only lockstep-run makes this file; without it nothing is written.
//
// Threads: one.
#pragma once

#include <cstdint>

namespace lockstep::checkpoint {

class LoadLog {
 public:
  /// Begins to measure.
  LoadLog();
  /// A checkpoint after `steps` steps is loaded; 0: there was none. Prints a line if it cannot be written.
  void write(std::int64_t steps) const noexcept;

 private:
  std::uint64_t begin_ns_;
};

}  // namespace lockstep::checkpoint
