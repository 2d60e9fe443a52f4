// Profiles steps of a job by a schedule and leaves trace.json, which shows all ranks on one time line, and of one rank
// operators.txt, the table of LibTorch's operators, and profile.json for lockstep-report (docs/users/profiler.md).
//
// Each rank writes its events to a file in the folder when its active steps end. The first rank that uses the folder
// joins these files as soon as all are there. It looks for them when a step ends, so no rank waits for another one.
//
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "exporters/record/snapshot.h"
#include "runtime/profile/schedule.h"
#include "runtime/profile/spans.h"
#include "runtime/profile/trace_file.h"

namespace lockstep::profile {

struct ProfilerOptions {
  Schedule schedule;
  std::filesystem::path folder;
  TraceRank rank;
  int ranks = 1;       ///< that use the folder
  bool joins = false;  ///< this is the first one of them
  /// Begins or ends to add LibTorch's operators to the spans; null: they are not traced.
  std::function<void(bool)> trace_operators = nullptr;
  /// Begins or ends to record what the GPU does, which adds spans at its end; null: no GPU.
  std::function<void(bool)> trace_device = nullptr;
  /// The GPU memory in use; null: no GPU.
  std::function<std::uint64_t()> device_bytes = nullptr;
  /// Ends the job, if the schedule has `stop`. All ranks call it after the same step.
  std::function<void()> end_job = nullptr;
};

class Profiler {
 public:
  /// On the rank that `joins`, removes the files of an earlier profile, and throws Error if it cannot; do this before
  /// another rank ends a step.
  explicit Profiler(ProfilerOptions options);
  /// Ends the profile without writing it.
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// Called when a step has ended. Returns whether this took time (a file was written). Errors are printed in one line
  /// and end the profile.
  bool end_step() noexcept;

  /// Whether all steps of the schedule are profiled and the job should end.
  bool ends_job() const {
    return options_.schedule.stop && options_.end_job &&
           options_.schedule.cycles_ended(steps_) == options_.schedule.repeat;
  }
  void end_job() const {
    const auto end = options_.end_job;  // it may destroy this object
    end();
  }

  /// finish() writes the active steps when the training is over. When it has returned on all ranks, join() makes the
  /// trace of what is left; it has an effect only on the rank that joins.
  void finish() noexcept;
  void join() noexcept;

 private:
  void enter(Schedule::State state);
  void write_part();
  bool join_parts(bool wait_for_all);
  std::vector<std::filesystem::path> parts_of_cycle(std::uint64_t cycle) const;
  template <typename Work>
  bool without_throwing(Work work) noexcept;

  ProfilerOptions options_;
  Schedule::State state_ = Schedule::State::off;
  std::uint64_t steps_ = 0;    // that have ended
  std::uint64_t written_ = 0;  // cycles that are in parts of this rank
  std::uint64_t joined_ = 0;   // cycles in the trace
  std::string operators_;      // the tables so far
  bool failed_ = false;
};

}  // namespace lockstep::profile
