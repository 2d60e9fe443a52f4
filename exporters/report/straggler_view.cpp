#include "exporters/report/straggler_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "exporters/report/picture.h"
#include "exporters/report/svg.h"

namespace lockstep::report {
namespace {

constexpr std::size_t kMaxRanksShown = 8;

std::vector<RankScore> slowest(const Stragglers& stragglers) {
  std::vector<RankScore> ranks = stragglers.ranks;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.to_peers > b.to_peers; });
  if (ranks.size() > kMaxRanksShown) ranks.resize(kMaxRanksShown);
  return ranks;
}

std::string heading(const Stragglers& stragglers) {
  return fmt::format(
      "own time, without waiting for others ({}last {} steps; the slowest rank of a step works {:.1f} % longer than the mean)",
      stragglers.ranks.size() > kMaxRanksShown ? fmt::format("the {} slowest ranks, ", kMaxRanksShown) : "",
      stragglers.steps, 100 * stragglers.imbalance);
}

constexpr std::array<const char*, 7> kColumns = {"own_ms",   "to_peers",  "to_past",          "late_rank",
                                                 "waits_ms", "delays_ms", "step_if_median_ms"};

constexpr std::array<const char*, kColumns.size()> kTitles = {"own time",
                                                              "own time ÷ median of the other ranks",
                                                              "own time lately ÷ before",
                                                              "waits longest for",
                                                              "waits for it",
                                                              "the others wait for this rank",
                                                              "step if this rank were like the median"};

std::array<std::string, kColumns.size()> cells(const RankScore& rank) {
  return {fmt::format("{:.2f}", rank.own_ms),
          fmt::format("{:.2f}", rank.to_peers),
          rank.to_past ? fmt::format("{:.2f}", *rank.to_past) : "-",
          rank.late_rank >= 0 ? fmt::format("rank {}", rank.late_rank) : "-",
          fmt::format("{:.2f}", rank.waits_ms),
          fmt::format("{:.2f}", rank.delays_ms),
          fmt::format("{:.2f}", rank.step_ms_if_median)};
}

nlohmann::json or_null(const std::optional<double>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

}  // namespace

std::string straggler_text(const Stragglers& stragglers) {
  if (stragglers.ranks.size() < 2) return "";
  const auto ranks = slowest(stragglers);
  std::size_t width = 4;
  for (const RankScore& rank : ranks) width = std::max(width, rank.node.size());
  std::string text = fmt::format("\n{}:\n{:>4}  {:<{}}", heading(stragglers), "rank", "node", width);
  for (const char* column : kColumns) text += fmt::format(" {:>9}", column);
  text += "\n";
  for (const RankScore& rank : ranks) {
    text += fmt::format("{:>4}  {:<{}}", rank.rank, rank.node, width);
    const auto row = cells(rank);
    for (std::size_t i = 0; i < row.size(); ++i) {
      text += fmt::format(" {:>{}}", row[i], std::max<std::size_t>(9, std::string_view(kColumns[i]).size()));
    }
    text += "\n";
  }
  return text;
}

std::string straggler_html(const Stragglers& stragglers) {
  if (stragglers.ranks.size() < 2) return "";
  std::string html = fmt::format(
      "\n<h2>Ranks that others wait for</h2>\n<p class=\"note\">Milliseconds per step; {}. Lately is the newest quarter of them.</p>",
      heading(stragglers));
  html += "<div class=\"scroll\"><table><tr><th>rank</th><th class=\"name\">node</th>";
  for (const char* column : kTitles) html += fmt::format("<th>{}</th>", column);
  html += "</tr>\n";
  for (const RankScore& rank : slowest(stragglers)) {
    html += fmt::format("<tr><td>{}</td><td class=\"name\">{}</td>", rank.rank, escape(rank.node));
    for (const std::string& cell : cells(rank)) html += fmt::format("<td>{}</td>", cell);
    html += "</tr>\n";
  }
  return html + "</table></div>";
}

nlohmann::json straggler_json(const Stragglers& stragglers) {
  nlohmann::json ranks = nlohmann::json::array();
  for (const RankScore& rank : stragglers.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"node", rank.node},
                     {"own_ms", rank.own_ms},
                     {"to_peers", rank.to_peers},
                     {"to_past", or_null(rank.to_past)},
                     {"late_rank", rank.late_rank >= 0 ? nlohmann::json(rank.late_rank) : nlohmann::json()},
                     {"waits_ms", rank.waits_ms},
                     {"delays_ms", rank.delays_ms},
                     {"step_ms_if_median", rank.step_ms_if_median}});
  }
  nlohmann::json found = nlohmann::json::array();
  for (const Straggler& one : stragglers.found) {
    found.push_back({{"cause", kCauseNames.at(static_cast<std::size_t>(one.cause))},
                     {"ranks", one.ranks},
                     {"node", one.node.empty() ? nlohmann::json() : nlohmann::json(one.node)},
                     {"lost_ms", one.lost_ms},
                     {"step_ms_without", one.step_ms_without},
                     {"often", one.often},
                     {"excess", one.excess},
                     {"more_tokens", one.more_tokens},
                     {"longer_samples", one.longer_samples},
                     {"phases", one.phases},
                     {"to_past", or_null(one.to_past)}});
  }
  return {{"steps", stragglers.steps},
          {"step_ms", stragglers.step_ms},
          {"step_ms_without_late", or_null(stragglers.step_ms_without_late)},
          {"imbalance", stragglers.imbalance},
          {"network_ms", stragglers.network_ms},
          {"ranks", std::move(ranks)},
          {"found", std::move(found)}};
}

}  // namespace lockstep::report
