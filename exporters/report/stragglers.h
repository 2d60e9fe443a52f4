// Finds the ranks that others wait for, and the cause, from the last steps that all ranks have in their records. The
// time of a step is the slowest rank's own time (the step without exposed communication) plus the communication that
// even this rank sees. So a step loses two amounts: how much longer the late rank works than the median of the other
// ranks, and the smallest exposed communication of any rank, which is not waiting for a late rank.
//
// A rank that is late in most steps is a straggler. If the ranks take turns, no rank and no node is at fault. The cause
// is the largest part of the extra time: waiting for data, writing a checkpoint, or computing. Computing is divided into
// what the rank's tokens and the length of its samples explain (uneven input), and the rest (slow worker). If the others
// wait for a rank that works no longer than they do, its communication is late (network).
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "exporters/report/run.h"

namespace lockstep::report {

enum class Cause { slow_worker, uneven_input, network, input_data, checkpoint };

/// The names in the order of Cause.
inline constexpr std::array<const char*, 5> kCauseNames = {"slow_worker", "uneven_input", "network",
                                                           "input_data", "checkpoint"};

/// A rank beside the others: means per step.
struct RankScore {
  int rank = 0;
  std::string node{};
  double own_ms = 0;
  double to_peers = 1;            ///< own time ÷ median own time of the other ranks
  std::optional<double> to_past;  ///< own time in the newest quarter of the steps ÷ before; needs 32 steps
  int late_rank = -1;             ///< the rank that it waits for longest; -1: none, or not measured
  double waits_ms = 0;
  double delays_ms = 0;          ///< how long the others wait for it, mean over them; 0 if not measured
  double step_ms_if_median = 0;  ///< the step if this rank worked as long as the median rank
};

struct Straggler {
  Cause cause = Cause::slow_worker;
  std::vector<int> ranks{};  ///< one rank or all of a node; empty: the ranks take turns, or it is unknown
  std::string node{};        ///< of these ranks
  double lost_ms = 0;        ///< per step
  double step_ms_without =
      0;                   ///< the step without this; with uneven input, the step if all ranks had equal work
  double often = 0;        ///< share of the steps in which one of them is last
  double excess = 0;       ///< own time ÷ that of the median rank, less 1
  double more_tokens = 0;  ///< tokens, padding included, ÷ those of the median rank, less 1
  double longer_samples = 0;      ///< tokens per sample ÷ those of the median rank, less 1; 0 if unknown
  std::string phases{};           ///< that take longer: "forward, backward"
  std::optional<double> to_past;  ///< as in RankScore; for network: of the communication
};

struct Stragglers {
  std::size_t steps = 0;  ///< compared
  double step_ms = 0;     ///< of the slowest rank, if the ranks do not wait for each other
  /// The step without any of the late ranks in `found`, because one alone may save nothing; only if there are several findings.
  std::optional<double> step_ms_without_late{};
  double imbalance =
      0;  ///< how much longer than the mean the slowest rank of a step works, as a share of the mean
  double network_ms = 0;           ///< exposed communication that is not waiting for a late rank
  std::vector<RankScore> ranks{};  ///< in the order of ranks
  std::vector<Straggler> found{};  ///< largest loss first; empty if nothing is worth a look
};

/// `rows` are common_steps(run).
Stragglers find_stragglers(const Run& run, const std::vector<StepRow>& rows);

/// "rank 3 on n2", "the 4 ranks on n2".
std::string who(const Straggler& straggler);

}  // namespace lockstep::report
