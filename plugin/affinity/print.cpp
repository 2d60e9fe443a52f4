#include "plugin/affinity/print.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "common/leaf/cpu_list.h"

namespace lockstep::affinity {
namespace {

constexpr std::size_t kColumns = 7;
using Row = std::array<std::string, kColumns>;

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

Row row_of(const TaskPlan& plan) {
  return {std::to_string(plan.task),
          format_cpu_list(plan.cpus),
          or_dash(format_cpu_list(plan.worker_cpus)),
          or_dash(format_cpu_list(plan.numa)),
          std::to_string(plan.threads),
          or_dash(fmt::format("{}", fmt::join(plan.gpus, ","))),
          plan.why};
}

}  // namespace

nlohmann::json to_json(const Machine& machine, const std::vector<TaskPlan>& plans) {
  nlohmann::json gpus = nlohmann::json::array();
  for (const Gpu& gpu : machine.gpus) gpus.push_back(gpu.bus_id);
  nlohmann::json tasks = nlohmann::json::array();
  for (const TaskPlan& plan : plans) {
    tasks.push_back({{"task", plan.task},
                     {"cpus", format_cpu_list(plan.cpus)},
                     {"worker_cpus", format_cpu_list(plan.worker_cpus)},
                     {"numa", plan.numa},
                     {"gpus", plan.gpus},
                     {"threads", plan.threads},
                     {"why", plan.why}});
  }
  return {{"topology",
           {{"source", machine.source},
            {"packages", machine.packages},
            {"numa_nodes", machine.domains.size()},
            {"caches", machine.caches},
            {"cores", machine.cores.size()},
            {"cpus", format_cpu_list(machine.known)},
            {"allowed_cpus", format_cpu_list(machine.allowed)},
            {"gpus", gpus}}},
          {"tasks", tasks}};
}

std::string to_plain(const std::vector<TaskPlan>& plans) {
  std::string text;
  for (const TaskPlan& plan : plans) {
    const Row row = row_of(plan);
    text += fmt::format("{} {}\n", fmt::join(row.begin(), row.end() - 1, " "), or_dash(plan.places));
  }
  return text;
}

std::string to_table(const std::vector<TaskPlan>& plans) {
  std::vector<Row> rows{{"task", "cpus", "workers", "numa", "threads", "gpus", "why"}};
  for (const TaskPlan& plan : plans) rows.push_back(row_of(plan));
  std::array<std::size_t, kColumns> width{};
  for (const Row& row : rows) {
    for (std::size_t c = 0; c < kColumns; ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string text;
  for (const Row& row : rows) {
    for (std::size_t c = 0; c + 1 < kColumns; ++c) text += fmt::format("{:<{}}  ", row[c], width[c]);
    text += row.back() + "\n";
  }
  return text;
}

}  // namespace lockstep::affinity
