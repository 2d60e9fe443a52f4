// The findings of a report on a run: its bound, the ranks that others wait for, the balance of their work, and advice.
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

// Finds the ranks that others wait for, and the cause, from the last steps that all ranks have in their records. The
// time of a step is the slowest rank's own time (the step without exposed communication) plus the communication that
// even this rank sees. So a step loses two amounts: how much longer the late rank works than the median of the other
// ranks, and the smallest exposed communication of any rank, which is not waiting for a late rank.
//
// A rank that is late in most steps is a straggler. If the ranks take turns, no rank and no node is at fault. The cause
// is the largest part of the extra time: waiting for data, writing a checkpoint, or computing. Computing is divided into
// what the rank's tokens and the length of its samples explain (uneven input), and the rest (slow worker). If the others
// wait for a rank that works no longer than they do, its communication is late (network).
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

// Compares the balance that the plan promised with that on the clock. The planner gives all ranks of a step equal cost
// a*L + b*L*L; if the slowest rank still computes longer than the mean one, the cost may not describe the model. Then a fit of
// the times of forward and backward to the ranks' tokens and squared lengths gives a better one.

/// The slowest rank's work ÷ the mean rank's, means over steps.
struct Balance {
  double promised = 1;      ///< by the plan's cost
  double measured = 1;      ///< time of forward and backward
  double fitted = 1;        ///< by the cost that fits the measured times best
  double cost_ratio = 0;    ///< the plan's a / b; infinite: it counts tokens only
  double fitted_ratio = 0;  ///< infinite: the time depends on the tokens only
  bool supported =
      false;  ///< both halves of the steps say so, and it explains most of what the plan did not promise
};

/// None if the ranks' work was not planned by our loader, or too few steps are known. `rows` are common_steps(run).
std::optional<Balance> find_balance(const Run& run, const std::vector<StepRow>& rows);

/// The cost that fits and the plan's, as an option of the plan, and how much they differ: "{2300, 1}", "{768, 1}", ": a
/// should be 3 times as large beside b".
std::vector<std::string> cost_texts(const Balance& balance);

/// "balance: …", a line of the report.
std::string balance_line(const Balance& balance);

/// null for none.
nlohmann::json balance_json(const std::optional<Balance>& balance);

/// What to change: the number that shows the need, and the command, option or line of code that mends it.
/// docs/users/metrics.md lists the rules.
struct Advice {
  std::string rule;           ///< its name in the documentation
  std::optional<Bound> part;  ///< of the step, which the remedy makes shorter
  std::string finding;        ///< a sentence with the number
  std::string remedy;         ///< a sentence with the command, option or line of code

  std::string text() const { return finding + " " + remedy; }
};

/// All that a report says about a run. The rules read the members before `advice`.
struct Diagnosis {
  Stragglers late{};
  std::vector<MemoryUse> memory{};
  std::optional<Verdict> verdict{};  ///< none if no step has ended on all ranks
  std::optional<Balance> balance{};  ///< none if it is not known
  bool python = false;           ///< lockstep.py wrote the records of all ranks, so remedies are in Python
  std::vector<Advice> advice{};  ///< empty if nothing stands out
};

/// One pass over the steps of all ranks.
Diagnosis diagnose(const Run& run);

/// The texts of `found.advice`, at least one: if nothing stands out, the numbers that show this.
std::vector<std::string> advise(const Run& run, const Diagnosis& found);

/// The lines that a report begins with: a memory fault if there is one, the bound and what is beside it with a remedy for
/// each, the steps that are possible, and goodput.
std::vector<std::string> verdict_lines(const Run& run, const Diagnosis& found);

/// {"bound_by":…,"bound_share":…,"bound_parts_ms":{…},"step_ms_if_twice":{…},"goodput":…,"goodput_seconds":…,
///  "goodput_lost":{…},"goodput_job":…}; null where it is not known.
nlohmann::json verdict_json(const Run& run, const Diagnosis& found);

}  // namespace lockstep::report
