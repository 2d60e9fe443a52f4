#include "exporters/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "common/median.h"
#include "exporters/report/text.h"

namespace lockstep::report {
namespace {

using record::Snapshot;

using Figures = std::vector<std::pair<std::string, double>>;  // in the order of the table

template <typename Figure>
double mean(const Run& run, const Figure& figure) {
  double sum = 0;
  for (const Snapshot& rank : run.ranks) sum += figure(rank);
  return sum / static_cast<double>(run.ranks.size());
}

Figures figures_of(const Run& run) {
  Figures figures;
  figures.emplace_back("tokens_per_second", tokens_per_second(run));
  figures.emplace_back("step_ms", mean(run, step_milliseconds));
  for (std::size_t i = 0; i < record::kPhases; ++i) {
    const auto phase = static_cast<record::Phase>(i);
    figures.emplace_back(std::string(record::kPhaseNames[i]) + "_ms",
                         mean(run, [&](const Snapshot& rank) { return phase_milliseconds(rank, phase); }));
  }
  std::vector<double> own;
  for (const Snapshot& rank : run.ranks) own.push_back(own_milliseconds(rank));
  const double middle = median(own);
  figures.emplace_back("slowest_to_median",
                       middle > 0 ? *std::max_element(own.begin(), own.end()) / middle : 0);
  double tokens = 0;
  double padding = 0;
  for (const Snapshot& rank : run.ranks) {
    tokens += static_cast<double>(rank.counters.tokens);
    padding += static_cast<double>(rank.counters.padding);
  }
  figures.emplace_back("padding_share", tokens + padding > 0 ? padding / (tokens + padding) : 0);
  return figures;
}

nlohmann::json object_of(const Figures& figures) {
  nlohmann::json object;
  for (const auto& [name, value] : figures) object[name] = value;
  return object;
}

}  // namespace

std::string comparison_text(const Run& run, const Run& baseline) {
  const Figures now = figures_of(run);
  const Figures before = figures_of(baseline);
  std::string text = fmt::format("{}\ncompared with {}\n\n{:<18} {:>12} {:>12} {:>9}\n", title(run),
                                 title(baseline), "mean over ranks", "run", "baseline", "change");
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double change = 100 * (now[i].second / before[i].second - 1);
    text += fmt::format("{:<18} {:>12.3f} {:>12.3f} {:>9}\n", now[i].first, now[i].second, before[i].second,
                        before[i].second == 0 ? "-" : fmt::format("{:+.1f} %", change));
  }
  return text;
}

nlohmann::json comparison_json(const Run& run, const Run& baseline) {
  const Figures now = figures_of(run);
  const Figures before = figures_of(baseline);
  nlohmann::json change;
  for (std::size_t i = 0; i < now.size(); ++i) {
    change[now[i].first] =
        before[i].second == 0 ? nlohmann::json() : nlohmann::json(now[i].second / before[i].second - 1);
  }
  return {{"run", object_of(now)}, {"baseline", object_of(before)}, {"change", std::move(change)}};
}

}  // namespace lockstep::report
