// The ranks of a job as they are now, as a table and as JSON: means over each rank's last steps, where a report shows
// means over the whole run.
//
// Threads: values; functions are safe from any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exporters/report/diagnosis.h"
#include "exporters/report/run.h"

namespace lockstep::top {

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

/// `run` needs the last record::kRecentSteps steps only. `now_ns` is CLOCK_MONOTONIC.
Live measure(const report::Run& run, std::uint64_t now_ns);

/// The space for the table, and whether a terminal shows it.
struct Space {
  std::size_t columns = std::numeric_limits<std::size_t>::max();
  std::size_t rows = std::numeric_limits<std::size_t>::max();
  bool colours = false;
};

/// The lines of the table, cut to `space`. Phases that took no time on any rank have no column. If there are more
/// ranks than rows, those with the longest own time are shown. With colours, the heading is bold, a rank that works
/// 15 % longer than the median rank is red, and one that does not run is dim.
std::vector<std::string> to_lines(const Live& live, const Space& space);

nlohmann::json to_json(const Live& live);

}  // namespace lockstep::top
