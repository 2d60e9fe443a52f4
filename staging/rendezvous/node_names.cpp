#include "staging/rendezvous/node_names.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string_view>

#include "common/error.h"
#include "common/leaf/text.h"
#include "common/units.h"

namespace lockstep::transfer {
namespace {

constexpr std::size_t kMaxNames = 8;
constexpr std::size_t kMaxReasons = 3;
constexpr std::size_t kMaxExpanded = 1U << 20U;

// Appends prefix + number for each number of "1-3,07", keeping leading zeros.
void expand_ranges(const std::string& prefix, std::string_view ranges, std::vector<std::string>& names) {
  for (const std::string_view range : split(ranges, ',')) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
    const auto first = to_number<std::uint64_t>(low);
    const auto last = to_number<std::uint64_t>(high);
    if (!first || !last) return;
    for (std::uint64_t number = *first; number <= *last && names.size() < kMaxExpanded; ++number) {
      names.push_back(fmt::format("{}{:0{}}", prefix, number, low.size()));
    }
  }
}

// Rounded down, so that 100 % means all.
double percent(std::uint64_t done, std::uint64_t total) {
  return total == 0 ? 100 : std::floor(100 * static_cast<double>(done) / static_cast<double>(total));
}

}  // namespace

std::vector<std::string> expand_node_list(const std::string& list) {
  std::vector<std::string> names;
  std::string prefix;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') {
      const std::size_t end = list.find(']', i);
      if (end == std::string::npos) return names;
      expand_ranges(prefix, std::string_view(list).substr(i + 1, end - i - 1), names);
      prefix.clear();
      i = end;
    } else if (list[i] == ',') {
      if (!prefix.empty()) names.push_back(std::move(prefix));
      prefix.clear();
    } else {
      prefix += list[i];
    }
  }
  if (!prefix.empty()) names.push_back(std::move(prefix));
  return names;
}

std::string describe_times(std::vector<std::pair<double, std::string>> seconds) {
  if (seconds.size() < 2) return "";
  std::sort(seconds.begin(), seconds.end());
  return fmt::format("{} to {}, median {}; the slowest is {}", format_seconds(seconds.front().first),
                     format_seconds(seconds.back().first), format_seconds(seconds[seconds.size() / 2].first),
                     seconds.back().second);
}

std::string describe_progress(std::uint64_t done, std::uint64_t total, double seconds) {
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const std::string speed = format_bytes(static_cast<std::uint64_t>(rate));
  if (done >= total) return fmt::format("{} copied, {}/s, not yet published", format_bytes(total), speed);
  std::string text = fmt::format("{:.0f} % of {}, {}/s", percent(done, total), format_bytes(total), speed);
  if (rate > 0) {
    const double left = static_cast<double>(total - done) / rate;
    text += fmt::format(", {} left", left < 1 ? "under 1 s" : format_seconds(left));
  }
  return text;
}

std::string describe_progress(const std::map<std::string, NodeProgress>& nodes) {
  std::set<std::string> sources;
  NodeProgress all;
  std::pair<double, std::string> slowest{101, ""};
  for (const auto& [node, progress] : nodes) {
    sources.insert(progress.source);
    all.done += progress.done;
    all.total += progress.total;
    all.seconds = std::max(all.seconds, progress.seconds);
    slowest = std::min(slowest, {percent(progress.done, progress.total), node});
  }
  constexpr std::size_t kMaxSources = 3;
  return fmt::format("staging {} on {}: {}; the slowest is {} ({:.0f} %)",
                     sources.size() > kMaxSources ? fmt::format("{} sources", sources.size())
                                                  : fmt::format("{}", fmt::join(sources, ", ")),
                     nodes.size() == 1 ? "1 node" : fmt::format("{} nodes", nodes.size()),
                     describe_progress(all.done, all.total, all.seconds), slowest.second, slowest.first);
}

std::string join_names(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size() && i < kMaxNames; ++i) text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kMaxNames) text += fmt::format(", ... ({} nodes)", names.size());
  return text;
}

std::string describe(const std::map<std::string, std::string>& why_by_node) {
  std::map<std::string, std::vector<std::string>> nodes_by_why;
  for (const auto& [node, why] : why_by_node) nodes_by_why[why].push_back(node);
  std::string text;
  std::size_t reasons = 0;
  for (const auto& [why, nodes] : nodes_by_why) {
    if (reasons++ == kMaxReasons)
      return fmt::format("{}; and {} more reasons", text, nodes_by_why.size() - kMaxReasons);
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", join_names(nodes), why);
  }
  return text;
}

}  // namespace lockstep::transfer
