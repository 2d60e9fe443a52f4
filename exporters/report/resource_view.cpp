#include "exporters/report/resource_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <utility>
#include <vector>

#include "common/units.h"
#include "exporters/report/picture.h"
#include "exporters/report/svg.h"

namespace lockstep::report {
namespace {

using record::Resources;
using record::Snapshot;

constexpr std::size_t kMaxProcessesShown = 8;

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

struct Column {
  const char* name;
  const char* title;
};

constexpr std::array<Column, 11> kUsed = {{{"cpus", "CPUs used, mean"},
                                           {"user_s", "processor time in the program"},
                                           {"system_s", "in the kernel"},
                                           {"loader_s", "of the loader’s threads"},
                                           {"memory", "resident memory"},
                                           {"peak", "its peak"},
                                           {"limit", "limit of the cgroup or the node"},
                                           {"page_ins", "pages read from disk"},
                                           {"read", "bytes of read calls"},
                                           {"reads", "read calls"},
                                           {"switches", "times that another thread got the CPU"}}};

std::vector<std::string> cells(const Snapshot& rank) {
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

const record::CollectiveTotals& totals_of(const Snapshot& rank, record::Collective collective) {
  return rank.resources->collectives[static_cast<std::size_t>(collective)];
}

constexpr std::array<Column, 10> kGpuUsed = {{{"busy", "time in which a kernel ran"},
                                              {"peak", "peak of the memory in use"},
                                              {"memory", "memory"},
                                              {"sm_mhz", "clock of the multiprocessors"},
                                              {"max_mhz", "its maximum"},
                                              {"slowed", "time slowed by heat or by the power supply"},
                                              {"capped", "time at the power limit"},
                                              {"energy", "energy"},
                                              {"ecc", "errors of memory that could not be corrected"},
                                              {"xid", "critical errors of GPU or program (Xid)"}}};

std::vector<std::string> gpu_cells(const Snapshot& rank) {
  const record::Gpu& gpu = rank.resources->gpu;
  const auto known = [](std::uint64_t value, std::string text) { return value == 0 ? "-" : std::move(text); };
  const auto share = [&](double part) { return known(gpu.measured_ns, fmt::format("{:.0f}%", 100 * part)); };
  return {share(gpu.busy()),
          known(gpu.memory_total_bytes, format_bytes(gpu.memory_peak_bytes)),
          known(gpu.memory_total_bytes, format_bytes(gpu.memory_total_bytes)),
          known(gpu.sm_mhz, fmt::to_string(gpu.sm_mhz)),
          known(gpu.sm_max_mhz, fmt::to_string(gpu.sm_max_mhz)),
          share(gpu.slowed()),
          share(gpu.capped()),
          known(gpu.energy_mj, format_count(static_cast<double>(gpu.energy_mj) * 1e-3) + "J"),
          fmt::to_string(gpu.ecc_uncorrected),
          fmt::to_string(gpu.xid_errors)};
}

constexpr std::array<Column, 2 * record::kCollectives> kExchanged = {
    {{"ar_alg", "all-reduce: algorithm bandwidth, GB/s"},
     {"ar_bus", "its bus bandwidth, GB/s"},
     {"rs_alg", "reduce-scatter: algorithm bandwidth, GB/s"},
     {"rs_bus", "its bus bandwidth, GB/s"},
     {"ag_alg", "all-gather: algorithm bandwidth, GB/s"},
     {"ag_bus", "its bus bandwidth, GB/s"},
     {"bc_alg", "broadcast: algorithm bandwidth, GB/s"},
     {"bc_bus", "its bus bandwidth, GB/s"}}};

std::vector<std::string> exchanged_cells(const Snapshot& rank) {
  std::vector<std::string> cells;
  for (std::size_t i = 0; i < record::kCollectives; ++i) {
    const auto collective = static_cast<record::Collective>(i);
    const double bandwidth = totals_of(rank, collective).algorithm_bandwidth() * 1e-9;
    const double bus = bandwidth * record::bus_factor(collective, rank.identity.size);
    cells.push_back(bandwidth == 0 ? "-" : fmt::format("{:.3g}", bandwidth));
    cells.push_back(bandwidth == 0 ? "-" : fmt::format("{:.3g}", bus));
  }
  return cells;
}

// The ranks with a value, the largest first in texts.
struct Table {
  const char* title;
  const char* largest;
  std::span<const Column> columns;
  std::uint64_t (*value)(const Snapshot& rank);  // 0: not in the table
  std::vector<std::string> (*cells)(const Snapshot& rank);

  std::vector<const Snapshot*> ranks(const Run& run) const {
    std::vector<const Snapshot*> with_value;
    for (const Snapshot& rank : run.ranks) {
      if (rank.resources && value(rank) != 0) with_value.push_back(&rank);
    }
    return with_value;
  }
};

const std::array kTables = {
    Table{"processes", "memory", kUsed,
          [](const Snapshot& rank) { return std::max<std::uint64_t>(1, rank.resources->memory_peak_bytes); },
          cells},
    Table{"GPUs", "time slowed", kGpuUsed,
          [](const Snapshot& rank) {
            return rank.resources->gpu.sampled() ? 1 + rank.resources->gpu.slowed_ns : 0;
          },
          gpu_cells},
    Table{"bandwidth of collectives in GB/s, as NCCL's tests define it", "time", kExchanged,
          [](const Snapshot& rank) {
            std::uint64_t ns = 0;
            for (const record::CollectiveTotals& totals : rank.resources->collectives) ns += totals.ns;
            return ns;
          },
          exchanged_cells}};

std::string text_of(const Table& table, const Run& run) {
  std::vector<const Snapshot*> ranks = table.ranks(run);
  if (ranks.empty()) return "";
  std::stable_sort(ranks.begin(), ranks.end(),
                   [&](const Snapshot* a, const Snapshot* b) { return table.value(*a) > table.value(*b); });
  std::string text = fmt::format("\n{}:\n", table.title);
  if (ranks.size() > kMaxProcessesShown) {
    text =
        fmt::format("\n{} (the {} with the largest {}):\n", table.title, kMaxProcessesShown, table.largest);
    ranks.resize(kMaxProcessesShown);
  }
  std::size_t width = 4;
  for (const Snapshot* rank : ranks) width = std::max(width, rank->identity.node.size());
  text += fmt::format("{:>4}  {:<{}}", "rank", "node", width);
  for (const Column& column : table.columns) text += fmt::format(" {:>9}", column.name);
  text += "\n";
  for (const Snapshot* rank : ranks) {
    text += fmt::format("{:>4}  {:<{}}", rank->identity.rank, rank->identity.node, width);
    for (const std::string& cell : table.cells(*rank)) text += fmt::format(" {:>9}", cell);
    text += "\n";
  }
  return text;
}

std::string html_of(const Table& table, const Run& run) {
  const std::vector<const Snapshot*> ranks = table.ranks(run);
  if (ranks.empty()) return "";
  std::string html =
      fmt::format("\n<h2>{}{}</h2><div class=\"scroll\"><table><tr><th>rank</th><th class=\"name\">node</th>",
                  static_cast<char>(std::toupper(table.title[0])), table.title + 1);
  for (const Column& column : table.columns) html += fmt::format("<th>{}</th>", column.title);
  html += "</tr>\n";
  for (const Snapshot* rank : ranks) {
    html += fmt::format("<tr><td>{}</td><td class=\"name\">{}</td>", rank->identity.rank,
                        escape(rank->identity.node));
    for (const std::string& cell : table.cells(*rank)) html += fmt::format("<td>{}</td>", cell);
    html += "</tr>\n";
  }
  return html + "</table></div>";
}

// Of the kinds that were measured.
nlohmann::json collectives_json(const Snapshot& rank) {
  auto json = nlohmann::json::object();
  for (std::size_t i = 0; i < record::kCollectives && rank.resources; ++i) {
    const auto collective = static_cast<record::Collective>(i);
    const record::CollectiveTotals& totals = totals_of(rank, collective);
    if (totals.ns == 0) continue;
    const double bandwidth = totals.algorithm_bandwidth();
    json[std::string(record::kCollectiveNames[i])] = {
        {"bytes", totals.bytes},
        {"seconds", seconds(totals.ns)},
        {"algorithm_bytes_per_second", bandwidth},
        {"bus_bytes_per_second", bandwidth * record::bus_factor(collective, rank.identity.size)}};
  }
  return json;
}

nlohmann::json gpu_json(const record::Gpu& gpu) {
  if (!gpu.sampled()) return nullptr;
  return {{"uuid", record::uuid_text(gpu)},
          {"memory_bytes", gpu.memory_bytes},
          {"memory_peak_bytes", gpu.memory_peak_bytes},
          {"memory_total_bytes", gpu.memory_total_bytes},
          {"measured_seconds", seconds(gpu.measured_ns)},
          {"busy_seconds", seconds(gpu.busy_ns)},
          {"slowed_seconds", seconds(gpu.slowed_ns)},
          {"power_capped_seconds", seconds(gpu.capped_ns)},
          {"throttle_reasons", gpu.throttle_reasons},
          {"sm_mhz", gpu.sm_mhz},
          {"sm_max_mhz", gpu.sm_max_mhz},
          {"memory_mhz", gpu.memory_mhz},
          {"power_watts", static_cast<double>(gpu.power_mw) * 1e-3},
          {"energy_joules", static_cast<double>(gpu.energy_mj) * 1e-3},
          {"ecc_corrected", gpu.ecc_corrected},
          {"ecc_uncorrected", gpu.ecc_uncorrected},
          {"xid_errors", gpu.xid_errors},
          {"last_xid", gpu.last_xid},
          {"allocator_retries", gpu.allocator_retries},
          {"allocator_unused_bytes", gpu.allocator_unused_bytes}};
}

}  // namespace

double cpus_used(const Snapshot& rank) {
  if (!rank.resources || rank.resources->sampled_ns <= rank.start_monotonic_ns) return 0;
  return static_cast<double>(rank.resources->user_ns + rank.resources->system_ns) /
         static_cast<double>(rank.resources->sampled_ns - rank.start_monotonic_ns);
}

std::string resource_text(const Run& run) {
  std::string text;
  for (const Table& table : kTables) text += text_of(table, run);
  return text;
}

std::string resource_html(const Run& run) {
  std::string html;
  for (const Table& table : kTables) html += html_of(table, run);
  return html;
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
                         {"skipped_samples", used.skipped_samples},
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
  json["gpus_granted"] = rank.resources ? nlohmann::json(used.gpu.granted) : nullptr;
  json["gpu"] = gpu_json(used.gpu);
  json["collectives"] = collectives_json(rank);
  json["loader_read_bytes"] = rank.counters.bytes_read;
  return json;
}

}  // namespace lockstep::report
