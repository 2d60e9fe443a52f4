// Says in one line what bounds a run, and the share of its time that trained. docs/users/metrics.md defines both.
//
// A step takes as long as its slowest rank works, plus the communication that even this rank waits for. So the time of
// the slowest rank of each step is divided into five parts, which add up to the step:
//
//   compute        forward, backward and optimizer, as long as the mean rank computes
//   input          waiting for data and copying it to the device
//   communication  exposed communication
//   host           code in no phase, checkpoints, and computing phases in which a device waited for the host
//   imbalance      how much longer the slowest rank computes than the mean rank
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exporters/record/goodput.h"
#include "exporters/report/run.h"

namespace lockstep::report {

enum class Bound { compute, input, communication, host, imbalance };
inline constexpr std::size_t kBounds = 5;

/// The names in the order of Bound.
inline constexpr std::array<const char*, kBounds> kBoundNames = {"compute", "input", "communication", "host",
                                                                 "imbalance"};

/// Each could be twice as good.
inline constexpr std::array<const char*, 4> kResourceNames = {"disk", "network", "processor", "balance"};

struct Verdict {
  Bound bound = Bound::compute;  ///< the largest part
  /// The other parts except compute that are at least 10 % of the step, the largest first.
  std::vector<Bound> beside{};
  std::string how{};       ///< of input: "reading", or "decoding and transforming"; empty if it is not known
  bool has_phases = true;  ///< of computing; without them, time in no phase may be anything
  std::size_t steps = 0;
  double step_ms = 0;                      ///< mean of the last steps that all ranks have
  std::array<double, kBounds> parts_ms{};  ///< add up to it
  /// The shortest step that is possible with each of kResourceNames twice as good.
  std::array<double, kResourceNames.size()> step_ms_if_twice{};

  double share(Bound part) const {
    return step_ms > 0 ? parts_ms.at(static_cast<std::size_t>(part)) / step_ms : 0;
  }
  /// The largest part that keeps the step from computing; compute if none is worth a remedy.
  Bound obstacle() const { return bound == Bound::compute && !beside.empty() ? beside.front() : bound; }
};

/// `rows` are common_steps(run). None if no step has ended on all ranks.
std::optional<Verdict> find_verdict(const Run& run, const std::vector<StepRow>& rows);

/// Mean over the ranks, of the time from the first rank's start to the last one's end or last step.
record::Goodput find_goodput(const Run& run);

/// "bound by: compute, 64 % of the step (76.8 of 120 ms); input (reading), 31 %".
std::string bound_line(const Verdict& verdict);

/// The lines that a report begins with: a memory fault if there is one, the bound and what is beside it with a remedy for
/// each, the steps that are possible, and goodput.
struct Diagnosis;  // advice.h
std::vector<std::string> verdict_lines(const Run& run, const Diagnosis& found);

/// {"bound_by":…,"bound_share":…,"bound_parts_ms":{…},"step_ms_if_twice":{…},"goodput":…,"goodput_seconds":…,
///  "goodput_lost":{…},"goodput_job":…}; null where it is not known.
nlohmann::json verdict_json(const Run& run, const Diagnosis& found);

}  // namespace lockstep::report
