#include "exporters/report/resource_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "exporters/report/resource_view.h"

namespace lockstep::report {
namespace {

using record::Snapshot;

constexpr double kUnused = 0.50;    // of the memory: a larger cap fits
constexpr double kCpuLimit = 0.90;  // of the processor time that the cgroup allows

// The peak of the shortest runs is not that of a whole epoch.
constexpr std::uint64_t kStepsForMemory = 32;

void advise_on_memory(const Run& run, Findings& found) {
  const std::vector<MemoryUse>& uses = found.memory;
  if (uses.empty()) return;
  if (is_full(uses.front())) {
    found.advice.push_back(
        {"memory-full",
         fmt::format("{}: {}.", uses.front().died ? "Out of memory" : "Memory is nearly full",
                     to_text(uses.front())),
         "Lower plan.cap or the loader's bytes_ahead, recompute activations (lockstep::activation_checkpoint), or ask for more memory (sbatch --mem)."});
    return;
  }
  const auto fits = [](const Snapshot& rank) {
    return rank.counters.tokens > 0 && rank.counters.steps >= kStepsForMemory && rank.resources &&
           rank.resources->on_device == 0;
  };
  if (uses.front().share() > kUnused || !std::all_of(run.ranks.begin(), run.ranks.end(), fits)) return;
  if (!found.verdict) return;
  const Bound obstacle = found.verdict->obstacle();
  if (obstacle != Bound::communication && obstacle != Bound::host) return;
  found.advice.push_back(
      {"memory-unused",
       fmt::format("Memory is not used: {}, and each step has little work for its {}.", to_text(uses.front()),
                   obstacle == Bound::host ? "launching" : "communication"),
       "A larger plan.cap fits; lockstep::memory_warm_up tries it before the training begins."});
}

void advise_on_cpus(const Run& run, std::vector<Advice>& advice) {
  struct Node {
    double used = 0;
    double largest = 0;
    double limit = 0;
  };
  std::map<std::string, Node> nodes;
  for (const Snapshot& rank : run.ranks) {
    if (!rank.resources || rank.resources->cpu_limit <= 0) continue;
    Node& node = nodes[rank.identity.node];
    node.limit = rank.resources->cpu_limit;
    node.used += cpus_used(rank);
    node.largest = std::max(node.largest, cpus_used(rank));
  }
  for (const auto& [name, node] : nodes) {
    // More than the limit together: then each rank has a cgroup and a limit of its own.
    const double used = node.used > 1.1 * node.limit ? node.largest : node.used;
    if (used < kCpuLimit * node.limit) continue;
    advice.push_back(
        {"cpu-limit",
         fmt::format("The job's cgroup on {} allows {:.2f} CPUs, and the ranks use {:.2f} of them.", name,
                     node.limit, used),
         "Ask for more CPUs (sbatch --cpus-per-task; in a container its CPU limit), or start fewer ranks or threads."});
    return;
  }
}

}  // namespace

void add_resource_advice(const Run& run, Findings& found) {
  advise_on_memory(run, found);
  advise_on_cpus(run, found.advice);
}

}  // namespace lockstep::report
