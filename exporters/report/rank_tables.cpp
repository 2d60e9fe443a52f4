#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/units.h"
#include "exporters/report/picture.h"
#include "exporters/report/report.h"

namespace lockstep::report {
namespace {

using record::Resources;
using record::Snapshot;

constexpr std::size_t kMaxShown = 8;  // in texts

struct Column {
  const char* name;
  const char* title;
};

struct TableRow {
  int rank;
  std::string node;
  std::vector<std::string> cells;
};

std::string text_of(const std::string& title, std::span<const Column> columns,
                    const std::vector<TableRow>& rows) {
  std::size_t width = 4;
  for (const TableRow& row : rows) width = std::max(width, row.node.size());
  std::string text = fmt::format("\n{}:\n{:>4}  {:<{}}", title, "rank", "node", width);
  const auto size = [](const Column& column) {
    return std::max<std::size_t>(9, std::string_view(column.name).size());
  };
  for (const Column& column : columns) text += fmt::format(" {:>{}}", column.name, size(column));
  for (const TableRow& row : rows) {
    text += fmt::format("\n{:>4}  {:<{}}", row.rank, row.node, width);
    for (std::size_t i = 0; i < columns.size(); ++i)
      text += fmt::format(" {:>{}}", row.cells[i], size(columns[i]));
  }
  return text + "\n";
}

std::string html_of(const std::string& title, std::span<const Column> columns,
                    const std::vector<TableRow>& rows) {
  std::string html = fmt::format(
      "\n<h2>{}<div class=\"scroll\"><table><tr><th>rank</th><th class=\"name\">node</th>", title);
  for (const Column& column : columns) html += fmt::format("<th>{}</th>", column.title);
  html += "</tr>\n";
  for (const TableRow& row : rows) {
    html += fmt::format("<tr><td>{}</td><td class=\"name\">{}</td>", row.rank, escape(row.node));
    for (const std::string& cell : row.cells) html += fmt::format("<td>{}</td>", cell);
    html += "</tr>\n";
  }
  return html + "</table></div>";
}

constexpr std::array<Column, 7> kLateness = {
    {{"own_ms", "own time"},
     {"to_peers", "own time ÷ median of the other ranks"},
     {"to_past", "own time lately ÷ before"},
     {"late_rank", "waits longest for"},
     {"waits_ms", "waits for it"},
     {"delays_ms", "the others wait for this rank"},
     {"step_if_median_ms", "step if this rank were like the median"}}};

// The slowest first.
std::vector<TableRow> slowest_rows(const Stragglers& stragglers) {
  std::vector<RankScore> ranks = stragglers.ranks;
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.to_peers > b.to_peers; });
  if (ranks.size() > kMaxShown) ranks.resize(kMaxShown);
  const auto number = [](double value) { return fmt::format("{:.2f}", value); };
  std::vector<TableRow> rows;
  rows.reserve(ranks.size());
  for (const RankScore& rank : ranks) {
    rows.push_back({rank.rank,
                    rank.node,
                    {number(rank.own_ms), number(rank.to_peers), rank.to_past ? number(*rank.to_past) : "-",
                     rank.late_rank >= 0 ? fmt::format("rank {}", rank.late_rank) : "-",
                     number(rank.waits_ms), number(rank.delays_ms), number(rank.step_ms_if_median)}});
  }
  return rows;
}

std::string heading(const Stragglers& stragglers) {
  return fmt::format(
      "own time, without waiting for others ({}last {} steps; the slowest rank of a step works {:.1f} % longer than the mean)",
      stragglers.ranks.size() > kMaxShown ? fmt::format("the {} slowest ranks, ", kMaxShown) : "",
      stragglers.steps, 100 * stragglers.imbalance);
}

double seconds(std::uint64_t ns) {
  return static_cast<double>(ns) * 1e-9;
}

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

std::vector<std::string> process_cells(const Snapshot& rank) {
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

// A table of the ranks with a value, the largest first in texts.
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

  std::vector<TableRow> rows(const std::vector<const Snapshot*>& ranks) const {
    std::vector<TableRow> rows;
    rows.reserve(ranks.size());
    for (const Snapshot* rank : ranks)
      rows.push_back({rank->identity.rank, rank->identity.node, cells(*rank)});
    return rows;
  }
};

const std::array kTables = {
    Table{"processes", "memory", kUsed,
          [](const Snapshot& rank) { return std::max<std::uint64_t>(1, rank.resources->memory_peak_bytes); },
          process_cells},
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

std::string straggler_text(const Stragglers& stragglers) {
  if (stragglers.ranks.size() < 2) return "";
  return text_of(heading(stragglers), kLateness, slowest_rows(stragglers));
}

std::string straggler_html(const Stragglers& stragglers) {
  if (stragglers.ranks.size() < 2) return "";
  const std::string title = fmt::format(
      "Ranks that others wait for</h2>\n<p class=\"note\">Milliseconds per step; {}. Lately is the newest quarter of them.</p>",
      heading(stragglers));
  return html_of(title, kLateness, slowest_rows(stragglers));
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

std::string resource_text(const Run& run) {
  std::string text;
  for (const Table& table : kTables) {
    std::vector<const Snapshot*> ranks = table.ranks(run);
    if (ranks.empty()) continue;
    std::stable_sort(ranks.begin(), ranks.end(),
                     [&](const Snapshot* a, const Snapshot* b) { return table.value(*a) > table.value(*b); });
    std::string title = table.title;
    if (ranks.size() > kMaxShown) {
      title += fmt::format(" (the {} with the largest {})", kMaxShown, table.largest);
      ranks.resize(kMaxShown);
    }
    text += text_of(title, table.columns, table.rows(ranks));
  }
  return text;
}

std::string resource_html(const Run& run) {
  std::string html;
  for (const Table& table : kTables) {
    const auto ranks = table.ranks(run);
    if (ranks.empty()) continue;
    const auto first = static_cast<char>(std::toupper(table.title[0]));
    html += html_of(fmt::format("{}{}</h2>", first, table.title + 1), table.columns, table.rows(ranks));
  }
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
