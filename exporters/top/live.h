// The ranks of a job as they are now: means over each rank's last steps, where a report shows means over the whole
// run.
//
// Threads: values; functions are safe from any.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "exporters/report/run.h"
#include "exporters/report/verdict.h"

namespace lockstep::top {

/// The last steps of a rank that are averaged; the exporter's straggler score uses as many.
inline constexpr std::size_t kLastSteps = 32;

/// A rank over its last steps. Times in milliseconds per step; all 0 before the first step.
struct LiveRank {
  int rank = 0;
  std::string node;
  std::string state;  ///< "running", "finished" or "died"
  std::uint64_t steps = 0;
  double step_ms = 0;
  double own_ms = 0;  ///< without exposed communication, because that is where a rank waits for others
  std::array<double, record::kPhases> shares{};  ///< of the step
  double tokens_per_second = 0;
  std::optional<double> wait_ms;       ///< waiting for later ranks; nullopt if it is not measured
  std::optional<int> late_rank;        ///< the rank that it waited for longest
  std::optional<record::Phase> now;    ///< the current phase of a running rank
  double now_seconds = 0;              ///< for how long
  std::optional<double> cpus;          ///< CPUs used, mean since the start; nullopt without a sample
  std::uint64_t memory_bytes = 0;      ///< resident
  std::optional<record::Gpu> gpu;      ///< nullopt without a GPU that NVML shows
  std::optional<double> idle_seconds;  ///< since the last step, or since the start, of a running rank
};

struct Live {
  record::Identity job;  ///< of the first rank
  std::string title;
  std::string state;
  std::vector<LiveRank> ranks;
  double tokens_per_second = 0;
  double median_own_ms = 0;
  std::optional<report::Verdict> verdict;  ///< none before all ranks have ended a step
  std::vector<std::string> notes;
};

/// `run` needs the last kLastSteps steps only. `now_ns` is CLOCK_MONOTONIC.
Live measure(const report::Run& run, std::uint64_t now_ns);

}  // namespace lockstep::top
