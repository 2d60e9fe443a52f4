#include "exporters/report/advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "common/process.h"

namespace lockstep::report {
namespace {

using record::Phase;
using record::Snapshot;

// Below these shares a change is not worth the effort.
constexpr double kDataWait = 0.05;
constexpr double kExposed = 0.10;
constexpr double kCheckpoint = 0.10;
constexpr double kPadding = 0.10;
constexpr double kOther = 0.20;
constexpr double kStraggler = 0.05;
// Blame a rank if it is the slowest in this share of the steps.
constexpr double kAlwaysTheSame = 0.6;

double share(const Snapshot& rank, Phase phase) {
  if (rank.counters.step_ns == 0) return 0;
  return static_cast<double>(rank.counters.phase_ns[record::index(phase)]) /
         static_cast<double>(rank.counters.step_ns);
}

template <typename Value>
double mean_over_ranks(const Run& run, Value value) {
  double sum = 0;
  for (const Snapshot& rank : run.ranks) sum += value(rank);
  return sum / static_cast<double>(run.ranks.size());
}

double mean_share(const Run& run, Phase phase) {
  return mean_over_ranks(run, [&](const Snapshot& rank) { return share(rank, phase); });
}

std::string name(const Snapshot& rank) {
  return rank_name(rank.identity.rank, rank.identity.node);
}

const Snapshot& largest(const Run& run, double (*value)(const Snapshot&)) {
  return *std::max_element(run.ranks.begin(), run.ranks.end(),
                           [&](const auto& a, const auto& b) { return value(a) < value(b); });
}

double data_share(const Snapshot& rank) {
  return share(rank, Phase::data_wait);
}

void advise_data(const Run& run, std::vector<std::string>& advice) {
  const double mean = mean_share(run, Phase::data_wait);
  const Snapshot& worst = largest(run, &data_share);
  constexpr const char* kWhat =
      "give the loader more workers (--pin=…,workers=N) or more batches ahead, and stage the data";
  if (mean >= kDataWait) {
    const bool all = std::all_of(run.ranks.begin(), run.ranks.end(),
                                 [&](const Snapshot& rank) { return data_share(rank) >= mean / 2; });
    advice.push_back(
        all ? fmt::format("Waiting for data takes {:.0f} % of the step on all ranks: {}.", mean * 100, kWhat)
            : fmt::format("Waiting for data takes {:.0f} % of the step of {}, {:.0f} % on average over all "
                          "ranks: on that node, {}.",
                          data_share(worst) * 100, name(worst), mean * 100, kWhat));
  } else if (data_share(worst) >= 2 * kDataWait) {
    advice.push_back(
        fmt::format("Waiting for data takes {:.0f} % of the step of {}, but little of the other ranks' "
                    "steps: check the disk and the loader's CPUs on that node.",
                    data_share(worst) * 100, name(worst)));
  }
}

struct Lateness {
  int rank = -1;           // the slowest one most often
  double often = 0;        // share of the steps in which it was
  double excess = 0;       // slowest ÷ median own time, mean over steps, less 1
  double more_tokens = 0;  // the slowest one's tokens ÷ median tokens, mean over steps, less 1
};

// One rank in one step.
struct Work {
  double own_ns = 0;
  int rank = -1;
  double tokens = 0;

  bool operator<(const Work& other) const { return own_ns < other.own_ns; }
};

// How far `value` is above the median of `all`, as a share of the median; 0 if the median is 0.
double above_median(double value, const std::vector<double>& all) {
  const double middle = median(all);
  return middle == 0 ? 0 : value / middle - 1;
}

// Over the last steps that all ranks still have in their records.
Lateness lateness(const Run& run) {
  std::map<std::uint64_t, std::vector<Work>> steps;
  for (const Snapshot& rank : run.ranks) {
    for (const record::Step& step : rank.steps) {
      steps[step.index].push_back({.own_ns = static_cast<double>(step.own_ns()),
                                   .rank = rank.identity.rank,
                                   .tokens = static_cast<double>(step.tokens)});
    }
  }
  std::map<int, std::size_t> slowest;
  std::size_t compared = 0;
  Lateness result;
  for (const auto& [index, work] : steps) {
    if (work.size() != run.ranks.size()) continue;
    std::vector<double> times;
    std::vector<double> tokens;
    for (const Work& one : work) {
      times.push_back(one.own_ns);
      tokens.push_back(one.tokens);
    }
    if (median(times) == 0) continue;
    const Work& worst = *std::max_element(work.begin(), work.end());
    result.excess += above_median(worst.own_ns, times);
    result.more_tokens += above_median(worst.tokens, tokens);
    ++slowest[worst.rank];
    ++compared;
  }
  if (compared == 0) return {};
  result.excess /= static_cast<double>(compared);
  result.more_tokens /= static_cast<double>(compared);
  for (const auto& [rank, count] : slowest) {
    const double often = static_cast<double>(count) / static_cast<double>(compared);
    if (often > result.often) {
      result.often = often;
      result.rank = rank;
    }
  }
  return result;
}

// The phases that take a rank longer than the median rank ("forward, backward"), without exposed
// communication.
std::string slower_phases(const Run& run, const Snapshot& slow, double threshold_ms) {
  std::string phases;
  for (std::size_t i = 0; i < record::kPhases; ++i) {
    const auto phase = static_cast<Phase>(i);
    if (phase == Phase::comm_exposed) continue;
    std::vector<double> all;
    for (const Snapshot& rank : run.ranks) all.push_back(phase_milliseconds(rank, phase));
    if (phase_milliseconds(slow, phase) - median(all) < threshold_ms) continue;
    phases += (phases.empty() ? "" : ", ") + std::string(record::name(phase));
  }
  return phases;
}

void advise_stragglers(const Run& run, std::vector<std::string>& advice) {
  if (run.ranks.size() < 2) return;
  const Lateness late = lateness(run);
  if (late.excess < kStraggler) return;
  const auto slow = std::find_if(run.ranks.begin(), run.ranks.end(),
                                 [&](const Snapshot& rank) { return rank.identity.rank == late.rank; });
  std::vector<double> own;
  for (const Snapshot& rank : run.ranks) own.push_back(own_milliseconds(rank));
  const double middle = median(own);
  const double excess_ms = own_milliseconds(*slow) - middle;
  if (late.often >= kAlwaysTheSame && excess_ms > 0) {
    const std::string where = slower_phases(run, *slow, excess_ms / 10);
    advice.push_back(fmt::format(
        "The slowest rank is {}: it works {:.0f} % longer per step than the median rank{} and is last in "
        "{:.0f} % "
        "of the steps. Check its node (clock, memory, other processes, binding).",
        name(*slow), 100 * excess_ms / middle, where.empty() ? "" : " (" + where + ")", 100 * late.often));
    return;
  }
  // Equal tokens can still be uneven work, because the cost of attention grows with the square of the length.
  // The record cannot distinguish that from ranks that compete for cores.
  const std::string why =
      late.more_tokens >= late.excess / 2
          ? fmt::format(
                "The slowest rank has {:.0f} % more tokens than the median rank: balance the batches by "
                "cost (lockstep-plan --cost)",
                100 * late.more_tokens)
          : fmt::format(
                "The slowest rank's tokens differ by {:.0f} % from the median: if lengths differ much, "
                "balance the batches by cost (lockstep-plan --cost); otherwise check whether ranks share "
                "cores (lockstep-pin show)",
                100 * std::abs(late.more_tokens));
  advice.push_back(fmt::format(
      "In each step the slowest rank works {:.0f} % longer than the median rank, but it is not "
      "always the same rank (most often {}, in {:.0f} % of the steps), so no node is at fault. {}.",
      100 * late.excess, name(*slow), 100 * late.often, why));
}

double comm_wait_share(const Snapshot& rank) {
  if (rank.counters.comm_transfer_ns == 0) return 0;
  return std::min(1.0, static_cast<double>(rank.counters.comm_wait_ns) /
                           static_cast<double>(rank.counters.comm_transfer_ns));
}

void advise_communication(const Run& run, std::vector<std::string>& advice) {
  const double exposed = mean_share(run, Phase::comm_exposed);
  if (exposed < kExposed) return;
  const double waiting = mean_over_ranks(run, comm_wait_share);
  if (waiting >= 0.5) {
    advice.push_back(
        fmt::format("Exposed communication takes {:.0f} % of the step, and {:.0f} % of communication is "
                    "waiting for late ranks: balance the ranks before you tune the network.",
                    exposed * 100, waiting * 100));
  } else {
    advice.push_back(
        fmt::format("Communication that did not overlap with backward takes {:.0f} % of the step: accumulate "
                    "more micro-batches per step, or give each rank more tokens.",
                    exposed * 100));
  }
}

void advise_padding(const Run& run, std::vector<std::string>& advice) {
  std::uint64_t tokens = 0;
  std::uint64_t padding = 0;
  for (const Snapshot& rank : run.ranks) {
    tokens += rank.counters.tokens;
    padding += rank.counters.padding;
  }
  if (padding == 0) return;
  const double part = static_cast<double>(padding) / static_cast<double>(tokens + padding);
  if (part >= kPadding) {
    advice.push_back(
        fmt::format("{:.0f} % of the tokens are padding: use packed batches under a token cap "
                    "(lockstep-plan --cap).",
                    part * 100));
  }
}

}  // namespace

std::vector<std::string> advise(const Run& run) {
  std::vector<std::string> advice;
  const bool any_step = std::any_of(run.ranks.begin(), run.ranks.end(),
                                    [](const Snapshot& rank) { return rank.counters.steps > 0; });
  if (!any_step) return {"No step has ended yet."};
  advise_data(run, advice);
  advise_stragglers(run, advice);
  advise_communication(run, advice);
  advise_padding(run, advice);
  if (const double part = mean_share(run, Phase::checkpoint); part >= kCheckpoint) {
    advice.push_back(
        fmt::format("Writing checkpoints takes {:.0f} % of the step: write them less often.", part * 100));
  }
  if (const double part = mean_share(run, Phase::other); part >= kOther) {
    advice.push_back(fmt::format(
        "{:.0f} % of the step is in no phase: give your data loader to timed_batches(), and put the "
        "optimizer in a scope of Phase::optimizer, to see which of them it is.",
        part * 100));
  }
  if (advice.empty()) {
    std::string slowest;
    if (run.ranks.size() > 1) {
      slowest = fmt::format(", and the slowest rank works {:.1f} % longer than the median rank",
                            100 * lateness(run).excess);
    }
    advice.push_back(fmt::format(
        "Nothing stands out: waiting for data takes {:.1f} % of the step, communication {:.1f} %{}.",
        100 * mean_share(run, Phase::data_wait), 100 * mean_share(run, Phase::comm_exposed), slowest));
  }
  return advice;
}

}  // namespace lockstep::report
