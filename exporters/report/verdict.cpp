#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "common/statistics.h"
#include "common/units.h"
#include "exporters/report/diagnosis.h"
#include "exporters/report/report.h"

namespace lockstep::report {
namespace {

using record::Phase;
using record::Resources;
using record::Snapshot;
using record::Step;

// A smaller part is not worth a remedy.
constexpr double kWorthARemedy = 0.10;

constexpr double& at(std::array<double, kBounds>& parts, Bound part) {
  return parts.at(static_cast<std::size_t>(part));
}

double computing_ms(const Step& step) {
  return step.phase_ms(Phase::forward) + step.phase_ms(Phase::backward) + step.phase_ms(Phase::optimizer);
}

std::uint64_t computing_ns(const Snapshot& rank) {
  const auto& ns = rank.counters.phase_ns;
  return ns[record::index(Phase::forward)] + ns[record::index(Phase::backward)] +
         ns[record::index(Phase::optimizer)];
}

double share_of(std::uint64_t part, std::uint64_t whole) {
  return whole == 0 ? 0 : std::min(1.0, static_cast<double>(part) / static_cast<double>(whole));
}

// Of the computing phases: how much of them a device waited for the host.
double launch_share(const Snapshot& rank) {
  return rank.resources ? share_of(rank.resources->launch_ns, computing_ns(rank)) : 0;
}

// Of the time in which the loaders' threads built batches: how much they computed, or were ready to, instead of waiting
// for bytes. None without our loader.
std::optional<double> decoding_share(const Run& run) {
  std::uint64_t build = 0;
  std::uint64_t computed = 0;
  for (const Snapshot& rank : run.ranks) {
    const Resources used = rank.resources.value_or(Resources{});
    build += used.loader_build_ns;
    computed += used.loader_user_ns + used.loader_system_ns + used.loader_delay_ns;
  }
  if (build == 0) return std::nullopt;
  return share_of(computed, build);
}

// Means per step.
struct Sums {
  double step = 0;
  double data_wait = 0;
  double transfer = 0;  // of communication, without waiting for later ranks
  std::array<double, kBounds> parts{};
};

void add_step(const Run& run, const StepRow& row, bool complete, Sums& sums) {
  std::size_t slowest = 0;
  double own = 0;
  double computing = 0;
  for (std::size_t i = 0; i < row.size(); ++i) {
    own += row[i]->own_ms() / static_cast<double>(row.size());
    computing += computing_ms(*row[i]) / static_cast<double>(row.size());
    if (row[i]->own_ns() > row[slowest]->own_ns()) slowest = i;
  }
  const Step& step = *row[slowest];
  const Snapshot& rank = run.ranks[slowest];
  double communication = step.phase_ms(Phase::comm_exposed);
  const double uneven = std::max(0.0, std::min(computing_ms(step) - computing, step.own_ms() - own));
  double waits_for_missing = 0;
  // If records are missing, the last rank may be one of those: this one waits for it.
  if (!complete && rank.counters.communication_measured()) {
    waits_for_missing = std::min(communication, static_cast<double>(step.comm_wait_ns) * 1e-6);
    communication -= waits_for_missing;
  }
  const double launch = computing_ms(step) * launch_share(rank);
  at(sums.parts, Bound::compute) += computing_ms(step) - launch - uneven;
  at(sums.parts, Bound::input) += step.phase_ms(Phase::data_wait) + step.phase_ms(Phase::host_to_device);
  at(sums.parts, Bound::communication) += communication;
  at(sums.parts, Bound::host) += step.phase_ms(Phase::other) + step.phase_ms(Phase::checkpoint) + launch;
  at(sums.parts, Bound::imbalance) += uneven + waits_for_missing;
  sums.step += static_cast<double>(step.step_ns) * 1e-6;
  sums.data_wait += step.phase_ms(Phase::data_wait);
  sums.transfer +=
      static_cast<double>(step.comm_transfer_ns - std::min(step.comm_wait_ns, step.comm_transfer_ns)) * 1e-6;
}

// Work that becomes faster may also overlap more with other work, so these are the shortest steps that are possible. A
// loader that is twice as fast may end all waiting, but a step that waited for it takes at least half as long.
std::array<double, kResourceNames.size()> if_twice(const Verdict& verdict, const Sums& means, bool measured,
                                                   std::optional<double> decoding) {
  const auto part = [&](Bound bound) { return verdict.parts_ms.at(static_cast<std::size_t>(bound)); };
  const double reading = 1 - decoding.value_or(0);
  const double half = verdict.step_ms / 2;
  const double exposed = part(Bound::communication);
  return {verdict.step_ms - std::min(means.data_wait, half * reading),
          verdict.step_ms - (measured ? std::min(exposed, std::max(exposed, means.transfer) / 2) : exposed),
          verdict.step_ms - (part(Bound::compute) + part(Bound::host)) / 2 -
              std::min(means.data_wait, half * decoding.value_or(0)),
          verdict.step_ms - part(Bound::imbalance) / 2};
}

constexpr std::array<const char*, kBounds> kRemedies = {
    "bfloat16 (lockstep::Autocast) where the processor has it, more ranks, or faster processors.",
    "Give the loader more workers (#SBATCH --pin=auto,workers=4) and more batches ahead (LoaderOptions{.batches_ahead = 8}).",
    "Give each step more work: plan.accumulate = 4, or a larger plan.cap.",
    "Give each step more work (a larger plan.cap), so that launching it counts less.",
    "Give the ranks equal cost with our loader (plan.cost = transformer_cost({…})).",
};

constexpr std::array<const char*, kBounds> kPythonRemedies = {
    "bfloat16 (torch.autocast) where the processor has it, more ranks, or faster processors.",
    "Give DataLoader more workers (num_workers=4), on CPUs of their own (#SBATCH --pin=auto,workers=4).",
    "Give each step more work: accumulate=4, or a larger cap, in lockstep.BatchSampler.",
    "Give each step more work (a larger cap in lockstep.BatchSampler), so that launching it counts less.",
    "Give the ranks equal cost: lockstep.BatchSampler(lengths, cap=…, cost=(10 * width, 1)).",
};

std::string remedy(const Verdict& verdict, Bound part, const Diagnosis& found) {
  for (const Advice& one : found.advice) {
    if (one.part == part) return one.remedy;
  }
  const std::string text = (found.python ? kPythonRemedies : kRemedies).at(static_cast<std::size_t>(part));
  if (part != Bound::compute) return text;
  return (verdict.beside.empty() ? "Nothing holds up the computing: " : "To compute faster: ") + text;
}

bool is_unknown(const Verdict& verdict, Bound part) {
  return part == Bound::host && !verdict.has_phases;
}

std::string name_of(const Verdict& verdict, Bound part) {
  if (is_unknown(verdict, part)) return "unknown (time in no phase)";
  const std::string name = kBoundNames.at(static_cast<std::size_t>(part));
  return part == Bound::input && !verdict.how.empty() ? name + " (" + verdict.how + ")" : name;
}

LastStart last_start(const Run& run, const std::optional<Verdict>& verdict, const record::Goodput& goodput) {
  LastStart last{.end_unix = end_unix(run)};
  if (verdict) {
    if (verdict->has_phases) last.goodput = goodput.trained;
    last.step_seconds = verdict->step_ms * 1e-3;
  }
  return last;
}

std::string bound_of(const Verdict& verdict) {
  return fmt::format("bound by: {}, {:.0f} % of the step ({} of {} ms)", name_of(verdict, verdict.bound),
                     100 * verdict.share(verdict.bound),
                     milliseconds(verdict.share(verdict.bound) * verdict.step_ms),
                     milliseconds(verdict.step_ms));
}

constexpr std::size_t kStepsForAFit = 16;  // fewer say nothing
constexpr double kWorthAdvice = 0.03;      // more than the plan promised
constexpr double kExplained = 0.5;         // of it, by the fit
constexpr double kOtherCost = 1.25;        // times the plan's a / b
constexpr double kHalvesAgree = 1.5;       // times the fit to all steps
constexpr double kManyTimes = 1e6;         // a or b does not count

MeasuredWork work_of(const record::Step& step) {
  return {.tokens = static_cast<double>(step.tokens + step.padding),
          .squares = static_cast<double>(step.squares),
          .time = step.phase_ms(Phase::forward) + step.phase_ms(Phase::backward)};
}

using Row = std::vector<MeasuredWork>;

template <typename Value>
double max_by_mean(const std::vector<Row>& rows, const Value& value) {
  double all = 0;
  for (const Row& row : rows) {
    double max = 0;
    double sum = 0;
    for (const MeasuredWork& work : row) {
      max = std::max(max, value(work));
      sum += value(work);
    }
    all += sum > 0 ? max * static_cast<double>(row.size()) / sum : 1;
  }
  return all / static_cast<double>(rows.size());
}

// Of every second row from `first` on, or of all.
CostFit fit_of(const std::vector<Row>& rows, std::size_t first, std::size_t every) {
  std::vector<MeasuredWork> all;
  for (std::size_t i = first; i < rows.size(); i += every)
    all.insert(all.end(), rows[i].begin(), rows[i].end());
  return fit_cost(all);
}

// How many times as large one is as the other; both may be infinite or 0.
double times(double ratio, double other) {
  const auto limited = [](double value) { return std::clamp(value, 1 / kManyTimes, kManyTimes); };
  return limited(ratio) / limited(other);
}

bool alike(double ratio, double other, double factor) {
  const double by = times(ratio, other);
  return by <= factor && by >= 1 / factor;
}

// Two digits: more are not known.
double rounded(double value) {
  if (value <= 0 || std::isinf(value)) return value;
  const double unit = std::pow(10, std::floor(std::log10(value)) - 1);
  return std::round(value / unit) * unit;
}

std::string cost_text(double ratio) {
  if (std::isinf(ratio)) return "{1, 0}";
  return fmt::format("{{{:.0f}, 1}}", ratio);
}

}  // namespace

std::optional<Verdict> find_verdict(const Run& run, const std::vector<StepRow>& rows) {
  if (rows.empty()) return std::nullopt;
  const bool complete = run.ranks.size() == static_cast<std::size_t>(run.ranks.front().identity.size);
  Sums means;
  for (const StepRow& row : rows) add_step(run, row, complete, means);
  const auto count = static_cast<double>(rows.size());
  for (double& part : means.parts) part /= count;
  means.step /= count;
  means.data_wait /= count;
  means.transfer /= count;
  Verdict verdict{.has_phases = std::any_of(run.ranks.begin(), run.ranks.end(), computing_ns),
                  .steps = rows.size(),
                  .step_ms = means.step,
                  .parts_ms = means.parts};
  if (means.step <= 0) return std::nullopt;
  const auto largest = std::max_element(means.parts.begin(), means.parts.end());
  verdict.bound = static_cast<Bound>(largest - means.parts.begin());
  for (std::size_t i = 1; i < kBounds; ++i) {
    const auto part = static_cast<Bound>(i);
    if (part != verdict.bound && verdict.share(part) >= kWorthARemedy) verdict.beside.push_back(part);
  }
  std::sort(verdict.beside.begin(), verdict.beside.end(),
            [&](Bound a, Bound b) { return verdict.share(a) > verdict.share(b); });
  const std::optional<double> decoding = decoding_share(run);
  if (decoding) verdict.how = *decoding < 0.5 ? "reading" : "decoding and transforming";
  const bool measured = std::all_of(run.ranks.begin(), run.ranks.end(), [](const Snapshot& rank) {
    return rank.counters.communication_measured();
  });
  verdict.step_ms_if_twice = if_twice(verdict, means, measured, decoding);
  return verdict;
}

record::Goodput find_goodput(const Run& run) {
  record::Goodput mean{.seconds = circumstances(run).seconds};
  const auto ranks = static_cast<double>(run.ranks.size());
  for (const Snapshot& rank : run.ranks) {
    const record::Goodput one = record::goodput_of(rank, mean.seconds);
    mean.trained += one.trained / ranks;
    for (const auto& [name, lost] : record::kLostTimes) mean.*lost += one.*lost / ranks;
  }
  return mean;
}

std::string bound_line(const Verdict& verdict) {
  std::string line = bound_of(verdict);
  for (const Bound part : verdict.beside)
    line += fmt::format("; {}, {:.0f} %", name_of(verdict, part), 100 * verdict.share(part));
  return line;
}

std::vector<std::string> verdict_lines(const Run& run, const Diagnosis& found) {
  std::vector<std::string> lines;
  for (const Advice& advice : found.advice) {
    if (advice.rule == "memory-full") lines.push_back(advice.text());
  }
  const std::optional<Verdict>& verdict = found.verdict;
  const record::Goodput goodput = find_goodput(run);
  for (std::string& line : restart_lines(run.restarts, last_start(run, verdict, goodput)))
    lines.push_back(std::move(line));
  if (!verdict) return lines;
  std::string bound = bound_of(*verdict) + ". " + remedy(*verdict, verdict->bound, found);
  for (const Bound part : verdict->beside) {
    bound += fmt::format(
        " Another {:.0f} % is {} ({} ms). {}", 100 * verdict->share(part), name_of(*verdict, part),
        milliseconds(verdict->parts_ms.at(static_cast<std::size_t>(part))), remedy(*verdict, part, found));
  }
  lines.push_back(bound);
  std::string possible = "a step would take at least";
  for (std::size_t i = 0; i < kResourceNames.size(); ++i) {
    possible += fmt::format("{} {} ms with twice the {}", i == 0 ? "" : ",",
                            milliseconds(verdict->step_ms_if_twice.at(i)), kResourceNames.at(i));
  }
  lines.push_back(possible);
  lines.push_back("goodput: " + (verdict->has_phases
                                     ? record::to_text(goodput, format_seconds(goodput.seconds))
                                     : "unknown, because no phases of computing were recorded"));
  return lines;
}

nlohmann::json verdict_json(const Run& run, const Diagnosis& found) {
  nlohmann::json json = {{"bound_by", nullptr}, {"bound_share", nullptr}, {"goodput", nullptr}};
  const std::optional<Verdict>& verdict = found.verdict;
  if (!verdict) return json;
  if (!is_unknown(*verdict, verdict->bound)) {
    json["bound_by"] = kBoundNames.at(static_cast<std::size_t>(verdict->bound));
  }
  json["bound_share"] = verdict->share(verdict->bound);
  for (std::size_t i = 0; i < kBounds; ++i)
    json["bound_parts_ms"][kBoundNames.at(i)] = verdict->parts_ms.at(i);
  for (std::size_t i = 0; i < kResourceNames.size(); ++i) {
    json["step_ms_if_twice"][kResourceNames.at(i)] = verdict->step_ms_if_twice.at(i);
  }
  const record::Goodput goodput = find_goodput(run);
  json["goodput_job"] = nullptr;
  if (verdict->has_phases) {
    json["goodput"] = goodput.trained;
    json["goodput_job"] = job_goodput(run.restarts, last_start(run, verdict, goodput));
  }
  json["goodput_seconds"] = goodput.seconds;
  for (const auto& [name, lost] : record::kLostTimes) json["goodput_lost"][name] = goodput.*lost;
  return json;
}

std::optional<Balance> find_balance(const Run& run, const std::vector<StepRow>& rows) {
  const double ratio = run.ranks.front().counters.cost_ratio;
  const bool alike_on_all =
      std::all_of(run.ranks.begin(), run.ranks.end(),
                  [&](const record::Snapshot& rank) { return rank.counters.cost_ratio == ratio; });
  if (run.ranks.size() < 2 || !alike_on_all || !(ratio > 0)) return std::nullopt;
  std::vector<Row> measured;
  for (const StepRow& row : rows) {
    Row works;
    for (const record::Step* step : row) works.push_back(work_of(*step));
    const bool known = std::all_of(works.begin(), works.end(), [](const MeasuredWork& work) {
      return work.squares > 0 && work.time > 0;
    });
    if (known) measured.push_back(std::move(works));
  }
  if (measured.size() < kStepsForAFit) return std::nullopt;
  const CostFit plan = std::isinf(ratio) ? CostFit{.a = 1, .b = 0} : CostFit{.a = ratio, .b = 1};
  const CostFit fit = fit_of(measured, 0, 1);
  Balance balance{
      .promised = max_by_mean(measured, [&](const MeasuredWork& work) { return plan.of(work); }),
      .measured = max_by_mean(measured, [](const MeasuredWork& work) { return work.time; }),
      .fitted = max_by_mean(measured, [&](const MeasuredWork& work) { return fit.of(work); }),
      .cost_ratio = ratio,
      .fitted_ratio = fit.ratio(),
  };
  const double lost = balance.measured - balance.promised;
  balance.supported = lost >= kWorthAdvice && balance.fitted - balance.promised >= kExplained * lost &&
                      !alike(fit.ratio(), ratio, kOtherCost);
  for (const std::size_t half : {0, 1}) {
    balance.supported =
        balance.supported && alike(fit_of(measured, half, 2).ratio(), fit.ratio(), kHalvesAgree);
  }
  return balance;
}

std::vector<std::string> cost_texts(const Balance& balance) {
  const double by = times(balance.fitted_ratio, balance.cost_ratio);
  const std::string change =
      std::isinf(balance.fitted_ratio) || std::isinf(balance.cost_ratio) || balance.fitted_ratio <= 0
          ? ""
          : fmt::format(": a should be {:.2g} times as large beside b", by);
  return {cost_text(rounded(balance.fitted_ratio)), cost_text(balance.cost_ratio), change};
}

std::string balance_line(const Balance& balance) {
  return fmt::format(
      "balance: the slowest rank of a step has {:.3f} times the mean rank's work by the plan, and {:.3f} times its forward and backward",
      balance.promised, balance.measured);
}

nlohmann::json balance_json(const std::optional<Balance>& balance) {
  if (!balance) return nullptr;
  const auto finite = [](double value) {
    return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
  };
  return {{"promised", balance->promised},
          {"measured", balance->measured},
          {"fitted", balance->fitted},
          {"cost_ratio", finite(balance->cost_ratio)},
          {"fitted_ratio", finite(balance->fitted_ratio)},
          {"supported", balance->supported}};
}

}  // namespace lockstep::report
