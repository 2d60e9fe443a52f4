#include "plugin/affinity/print.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>

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

namespace {

constexpr int kCell = 26;  // one hardware thread
constexpr int kGap = 6;    // between caches
constexpr int kMargin = 14;
constexpr int kLabel = 18;  // a line of text
constexpr int kCoresInRow = 24;

struct Use {
  int task = -1;
  int tasks = 0;  // above 1 if tasks share the CPU
  bool worker = false;
};

std::string colour(int task) {
  constexpr int kGoldenAngle = 137;  // neighbours in number are far apart in hue
  return task < 0 ? "#e4e4e4"
                  : fmt::format("hsl({},62%,{}%)", task * kGoldenAngle % 360, 62 + task / 12 % 3 * 8);
}

std::string text(int x, int y, int size, const std::string& content, const char* more = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}>{}</text>\n", x, y, size, more, content);
}

class Drawing {
 public:
  Drawing(const Machine& machine, const std::vector<TaskPlan>& plans) : machine_(machine), plans_(plans) {
    for (const TaskPlan& plan : plans) {
      for (const int cpu : plan.cpus) use(cpu, plan.task, false);
      for (const int cpu : plan.worker_cpus) {
        if (!std::binary_search(plan.cpus.begin(), plan.cpus.end(), cpu)) use(cpu, plan.task, true);
      }
    }
  }

  std::string svg() {
    int y = kMargin;
    std::string body;
    for (std::size_t d = 0; d < machine_.domains.size(); ++d) body += domain(static_cast<int>(d), y);
    body += legend(y);
    return fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\">\n"
        "<defs><pattern id=\"worker\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><rect width=\"2\" height=\"6\" fill=\"#000\" opacity=\"0.45\"/></pattern></defs>\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{2}</svg>\n",
        width_ + kMargin, y + kMargin, body);
  }

 private:
  void use(int cpu, int task, bool worker) {
    Use& at = uses_[cpu];
    if (at.tasks++ == 0) at = {task, 1, worker};
  }

  // A frame with the cores of one NUMA node, a column for each core, wrapped after kCoresInRow.
  std::string domain(int index, int& y) {
    std::vector<const Core*> cores;
    std::size_t most_cpus = 1;
    for (const Core& core : machine_.cores) {
      if (core.domain != index) continue;
      cores.push_back(&core);
      most_cpus = std::max(most_cpus, core.cpus.size());
    }
    const Domain& about = machine_.domains[static_cast<std::size_t>(index)];
    const int top = y;
    const int row_height = static_cast<int>(most_cpus) * kCell + kGap;
    std::string body = text(kMargin + 8, y + kLabel - 3, 12, title(about, index));
    y += kLabel + kGap;
    int x = kMargin + 8;
    int right = x;
    for (std::size_t i = 0; i < cores.size(); ++i) {
      if (i > 0 && i % kCoresInRow == 0) {
        x = kMargin + 8;
        y += row_height;
      } else if (i > 0 && cores[i]->cache != cores[i - 1]->cache) {
        x += kGap;
      }
      for (std::size_t c = 0; c < cores[i]->cpus.size(); ++c) {
        body += cell(cores[i]->cpus[c], x, y + static_cast<int>(c) * kCell);
      }
      x += kCell;
      right = std::max(right, x);
    }
    y += row_height + kGap;
    width_ = std::max({width_, right + 8, kMargin + 420});
    const std::string frame = fmt::format(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" stroke=\"#888\" rx=\"4\"/>\n",
        kMargin, top, right + 8 - kMargin, y - kGap - top);
    return frame + body;
  }

  std::string title(const Domain& about, int index) const {
    std::string gpus;
    for (const Gpu& gpu : machine_.gpus) {
      if (std::count(gpu.domains.begin(), gpu.domains.end(), index) > 0)
        gpus += fmt::format(" · GPU {}", gpu.bus_id);
    }
    return fmt::format("package {} · NUMA node {}{}", about.package, about.node, gpus);
  }

  std::string cell(int cpu, int x, int y) const {
    const auto found = uses_.find(cpu);
    const Use at = found == uses_.end() ? Use{} : found->second;
    const auto box = [&](const std::string& fill) {
      return fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\"/>",
                         x, y, kCell, kCell, fill);
    };
    const std::string owner = at.tasks == 0  ? "no task"
                              : at.tasks > 1 ? fmt::format("{} tasks", at.tasks)
                                             : fmt::format("task {}", at.task);
    return fmt::format(
        "<g><title>CPU {}: {}{}</title>{}{}{}</g>\n", cpu, owner, at.worker ? ", loader" : "",
        box(colour(at.task)), at.worker ? box("url(#worker)") : "",
        text(x + kCell / 2, y + kCell / 2 + 4, 10, std::to_string(cpu), " text-anchor=\"middle\""));
  }

  std::string legend(int& y) const {
    std::string body;
    for (const TaskPlan& plan : plans_) {
      const std::string workers = plan.worker_cpus.empty() ? ""
                                                           : fmt::format(", loaders on {} (hatched)",
                                                                         format_cpu_list(plan.worker_cpus));
      body += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"12\" height=\"12\" fill=\"{}\"/>", kMargin, y,
                          colour(plan.task));
      body += text(kMargin + 18, y + 11, 12,
                   fmt::format("task {}: CPUs {}{}", plan.task, format_cpu_list(plan.cpus), workers));
      y += kLabel;
    }
    return body;
  }

  const Machine& machine_;
  const std::vector<TaskPlan>& plans_;
  std::map<int, Use> uses_;
  int width_ = 0;
};

}  // namespace

std::string draw_plan(const Machine& machine, const std::vector<TaskPlan>& plans) {
  return Drawing(machine, plans).svg();
}

}  // namespace lockstep::affinity
