// When the profiler looks at a training: it skips `wait` steps, profiles `warmup` steps without keeping them, keeps
// `active` steps, and does this `repeat` times.
//
//   LOCKSTEP_PROFILE=wait:10,warmup:1,active:3,stop srun ./train      or      world.start_profile("wait:10,active:3");
//
// Threads: a value.
#pragma once

#include <cstdint>
#include <string_view>

namespace lockstep::profile {

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

}  // namespace lockstep::profile
