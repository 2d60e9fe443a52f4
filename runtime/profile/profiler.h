// Profiles steps of a job by a schedule. Each rank leaves trace-RANK.json; the first rank that uses the folder also leaves
// operators.txt, the table of LibTorch's operators, and profile.json for lockstep-report (docs/users/profiler.md).
//
// A rank writes its files when its active steps end. It reads no files of other ranks: lockstep-report joins the traces.
//
// Threads: the training thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/profile/spans.h"
#include "runtime/profile/trace_file.h"

namespace lockstep::profile {

/// When the profiler looks at a training: it skips `wait` steps, profiles `warmup` steps without keeping them, keeps
/// `active` steps, and does this `repeat` times.
///
///   LOCKSTEP_PROFILE=wait:10,warmup:1,active:3,stop srun ./train      or      world.start_profile("wait:10,active:3");
struct Schedule {
  std::uint64_t wait = 0;    ///< steps to skip first, such as those that allocate memory
  std::uint64_t warmup = 0;  ///< steps to profile without keeping them: the first profiled step is slower
  std::uint64_t active = 1;  ///< steps to keep
  std::uint64_t repeat = 1;  ///< how often
  bool stop = false;         ///< then end the job
  bool shapes = false;       ///< tell operators apart by the sizes of their inputs

  enum class State : std::uint8_t { off, warmup, active };
  /// The profiler's state during a step; the first one is step 0.
  State state(std::uint64_t step) const;
  /// The number of complete cycles when `steps` steps have ended.
  std::uint64_t cycles_ended(std::uint64_t steps) const;
};

/// Reads "wait:W,warmup:U,active:A,repeat:R,shapes,stop": `active` is required, the others are 0, 0, 1 and off by default. Throws
/// UsageError, also if nothing would be profiled or a number is larger than a million.
Schedule parse_schedule(std::string_view text);

struct ProfilerOptions {
  Schedule schedule;
  std::filesystem::path folder;
  TraceRank rank;
  bool first = false;  ///< of the ranks that use the folder: writes operators.txt and profile.json
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
  /// Removes the files that this rank would write, which may be those of an earlier job. Throws Error if it cannot.
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

  /// Writes the active steps that have ended, when the training is over.
  void finish() noexcept;

 private:
  void enter(Schedule::State state);
  void write();
  void write_summary(const Spans& spans);
  template <typename Work>
  bool without_throwing(Work work) noexcept;

  ProfilerOptions options_;
  Schedule::State state_ = Schedule::State::off;
  std::uint64_t steps_ = 0;    // that have ended
  std::uint64_t written_ = 0;  // cycles
  std::string operators_;      // the tables so far
  bool failed_ = false;
};

}  // namespace lockstep::profile
