#include "exporters/report/balance.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "common/cost_fit.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kStepsForAFit = 16;  // fewer say nothing
constexpr double kWorthAdvice = 0.03;      // more than the plan promised
constexpr double kExplained = 0.5;         // of it, by the fit
constexpr double kOtherCost = 1.25;        // times the plan's a / b
constexpr double kHalvesAgree = 1.5;       // times the fit to all steps
constexpr double kManyTimes = 1e6;         // a or b does not count

using record::Phase;

MeasuredWork work_of(const record::Step& step) {
  const auto ns =
      step.phase_ns[record::index(Phase::forward)] + step.phase_ns[record::index(Phase::backward)];
  return {.tokens = static_cast<double>(step.tokens + step.padding),
          .squares = static_cast<double>(step.squares),
          .time = static_cast<double>(ns)};
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
