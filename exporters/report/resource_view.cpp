#include "exporters/report/resource_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "common/units.h"
#include "exporters/report/picture.h"

namespace lockstep::report {
namespace {

using record::Resources;
using record::Snapshot;

constexpr std::size_t kMaxProcessesShown = 8;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

constexpr std::array<const char*, 11> kUsed = {"cpus",  "user_s",   "system_s", "loader_s", "memory",  "peak",
                                               "limit", "page_ins", "read",     "reads",    "switches"};
constexpr std::array<const char*, kUsed.size()> kUsedTitles = {"CPUs used, mean",
                                                               "processor time in the program",
                                                               "in the kernel",
                                                               "of the loader’s threads",
                                                               "resident memory",
                                                               "its peak",
                                                               "limit of the cgroup or the node",
                                                               "pages read from disk",
                                                               "bytes of read calls",
                                                               "read calls",
                                                               "times that another thread got the CPU"};

std::array<std::string, kUsed.size()> cells(const Snapshot& rank) {
  const Resources& used = *rank.resources;
  return {fmt::format("{:.2f}", cpus_used(rank)),
          fmt::format("{:.1f}", seconds(used.user_ns)),
          fmt::format("{:.1f}", seconds(used.system_ns)),
          fmt::format("{:.1f}", seconds(used.loader_user_ns + used.loader_system_ns)),
          format_bytes(used.memory_bytes),
          format_bytes(used.memory_peak_bytes),
          used.memory_limit_bytes == 0 ? "-" : format_bytes(used.memory_limit_bytes),
          format_count(static_cast<double>(used.major_faults)),
          format_bytes(used.read_bytes),
          format_count(static_cast<double>(used.read_calls)),
          format_count(static_cast<double>(used.involuntary_switches))};
}

std::vector<const Snapshot*> sampled(const Run& run) {
  std::vector<const Snapshot*> ranks;
  for (const Snapshot& rank : run.ranks) {
    if (rank.resources) ranks.push_back(&rank);
  }
  return ranks;
}

}  // namespace

double cpus_used(const Snapshot& rank) {
  if (!rank.resources || rank.resources->sampled_ns <= rank.start_monotonic_ns) return 0;
  return static_cast<double>(rank.resources->user_ns + rank.resources->system_ns) /
         static_cast<double>(rank.resources->sampled_ns - rank.start_monotonic_ns);
}

std::string resource_text(const Run& run) {
  std::vector<const Snapshot*> ranks = sampled(run);
  if (ranks.empty()) return "";
  std::stable_sort(ranks.begin(), ranks.end(), [](const Snapshot* a, const Snapshot* b) {
    return a->resources->memory_peak_bytes > b->resources->memory_peak_bytes;
  });
  std::string text = "\nprocesses:\n";
  if (ranks.size() > kMaxProcessesShown) {
    text = fmt::format("\nprocesses (the {} with the largest memory):\n", kMaxProcessesShown);
    ranks.resize(kMaxProcessesShown);
  }
  std::size_t width = 4;
  for (const Snapshot* rank : ranks) width = std::max(width, rank->identity.node.size());
  text += fmt::format("{:>4}  {:<{}}", "rank", "node", width);
  for (const char* column : kUsed) text += fmt::format(" {:>9}", column);
  text += "\n";
  for (const Snapshot* rank : ranks) {
    text += fmt::format("{:>4}  {:<{}}", rank->identity.rank, rank->identity.node, width);
    for (const std::string& cell : cells(*rank)) text += fmt::format(" {:>9}", cell);
    text += "\n";
  }
  return text;
}

std::string resource_html(const Run& run) {
  const std::vector<const Snapshot*> ranks = sampled(run);
  if (ranks.empty()) return "";
  std::string html =
      "\n<h2>Processes</h2><div class=\"scroll\"><table><tr><th>rank</th><th class=\"name\">node</th>";
  for (const char* title : kUsedTitles) html += fmt::format("<th>{}</th>", title);
  html += "</tr>\n";
  for (const Snapshot* rank : ranks) {
    html += fmt::format("<tr><td>{}</td><td class=\"name\">{}</td>", rank->identity.rank,
                        escape(rank->identity.node));
    for (const std::string& cell : cells(*rank)) html += fmt::format("<td>{}</td>", cell);
    html += "</tr>\n";
  }
  return html + "</table></div>";
}

nlohmann::json resource_json(const Snapshot& rank) {
  const Resources used = rank.resources.value_or(Resources{});
  nlohmann::json json = {{"cpu_seconds", seconds(used.user_ns + used.system_ns)},
                         {"cpu_user_seconds", seconds(used.user_ns)},
                         {"cpu_system_seconds", seconds(used.system_ns)},
                         {"cpu_limit", used.cpu_limit},
                         {"loader_cpu_seconds", seconds(used.loader_user_ns + used.loader_system_ns)},
                         {"loader_build_seconds", seconds(used.loader_build_ns)},
                         {"loader_buffer_bytes", used.loader_buffer_bytes},
                         {"memory_bytes", used.memory_bytes},
                         {"memory_peak_bytes", used.memory_peak_bytes},
                         {"memory_limit_bytes", used.memory_limit_bytes},
                         {"major_faults", used.major_faults},
                         {"read_bytes", used.read_bytes},
                         {"read_calls", used.read_calls},
                         {"storage_read_bytes", used.storage_read_bytes},
                         {"voluntary_switches", used.voluntary_switches},
                         {"involuntary_switches", used.involuntary_switches}};
  if (!rank.resources) {
    for (auto& value : json) value = nullptr;
  }
  json["loader_read_bytes"] = rank.counters.bytes_read;
  return json;
}

}  // namespace lockstep::report
