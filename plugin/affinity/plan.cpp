#include "plugin/affinity/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "plugin/affinity/placement.h"
#include "plugin/affinity/reason.h"

namespace lockstep::affinity {
namespace {

constexpr int kMaxTasks = 65536;  // more than any node runs: a mistyped number must not use up the memory

std::vector<int> difference(const std::vector<int>& a, const std::vector<int>& b) {
  std::vector<int> left;
  std::set_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(left));
  return left;
}

std::vector<int> sorted_set(std::vector<int> list) {
  std::sort(list.begin(), list.end());
  list.erase(std::unique(list.begin(), list.end()), list.end());
  return list;
}

void check(const Machine& machine, const Request& request) {
  if (request.tasks < 1 || request.tasks > kMaxTasks) {
    fail_usage("{} tasks: the number of tasks on a node must be 1 to {}", request.tasks, kMaxTasks);
  }
  if (request.cpus_per_task < 0 || request.workers < 0 || request.smt < 0) {
    fail_usage("CPUs per task, workers and smt cannot be negative");
  }
  const std::vector<int> beyond = difference(sorted_set(request.within), machine.known);
  if (!beyond.empty()) {
    fail_usage("CPUs {} are not in topology '{}', which has CPUs {}", format_cpu_list(beyond), machine.source,
               format_cpu_list(machine.known));
  }
}

// "{0,48},{1,49}": for each core those of its hardware threads that are in the list.
std::string openmp_places(const std::vector<Core>& cores, const std::vector<int>& cpus) {
  std::vector<std::string> places;
  for (const Core& core : cores) {
    std::vector<int> threads;
    std::copy_if(core.cpus.begin(), core.cpus.end(), std::back_inserter(threads),
                 [&](int cpu) { return std::binary_search(cpus.begin(), cpus.end(), cpu); });
    if (!threads.empty()) places.push_back(fmt::format("{{{}}}", fmt::join(threads, ",")));
  }
  return fmt::format("{}", fmt::join(places, ","));
}

class Planner {
 public:
  Planner(const Machine& machine, const Request& request) : machine_(machine), request_(request) {
    check(machine, request);
    find_usable();
    share_gpus();
  }

  std::vector<TaskPlan> run() {
    if (request_.policy == Policy::off) return unpinned();
    PlacementRequest wanted{request_.tasks, cores_per_task(), request_.policy, {}};
    wanted.near.reserve(gpus_.size());
    for (const std::vector<int>& gpus : gpus_) wanted.near.push_back(domains_near(gpus));
    const std::vector<TaskCores> placements = place_tasks(cores_, wanted);
    const int idle = idle_cores(placements);
    std::vector<TaskPlan> plans;
    plans.reserve(static_cast<std::size_t>(request_.tasks));
    for (int task = 0; task < request_.tasks; ++task) {
      plans.push_back(plan_task(task, placements[static_cast<std::size_t>(task)], idle));
    }
    return plans;
  }

 private:
  void find_usable() {
    const std::vector<int> within = request_.within.empty() ? machine_.allowed : sorted_set(request_.within);
    for (const Core& core : machine_.cores) {
      Core usable = core;
      std::erase_if(usable.cpus, [&](int cpu) {
        return !std::binary_search(machine_.allowed.begin(), machine_.allowed.end(), cpu) ||
               !std::binary_search(within.begin(), within.end(), cpu);
      });
      usable_.insert(usable_.end(), usable.cpus.begin(), usable.cpus.end());
      if (!usable.cpus.empty()) cores_.push_back(std::move(usable));
    }
    usable_ = sorted_set(usable_);
    unusable_ = difference(within, usable_);
    if (cores_.empty()) {
      fail("none of CPUs {} can be used: they are offline or not granted to this job",
           format_cpu_list(within));
    }
    order_cores();
  }

  // Makes the plan depend on the usable CPUs alone, so that a restricted machine gets the same plan as a smaller one: a
  // cache with one usable core is not shared, and cores are ordered as hwloc does, by the first CPU of their package,
  // NUMA node and cache.
  void order_cores() {
    std::map<int, int> sharers;
    for (const Core& core : cores_) ++sharers[core.cache];
    for (Core& core : cores_) {
      if (sharers[core.cache] == 1) core.cache = unshared_cache(core.domain);
    }
    std::map<int, int> packages;
    std::map<int, int> domains;
    std::map<int, int> caches;
    const auto lower = [](std::map<int, int>& first, int group, int cpu) {
      int& lowest = first.try_emplace(group, cpu).first->second;
      lowest = std::min(lowest, cpu);
    };
    for (const Core& core : cores_) {
      const int cpu = *std::min_element(core.cpus.begin(), core.cpus.end());
      lower(packages, core.package, cpu);
      lower(domains, core.domain, cpu);
      lower(caches, core.cache, cpu);
    }
    const auto place = [&](const Core& core) {
      return std::tuple(packages[core.package], domains[core.domain], caches[core.cache],
                        *std::min_element(core.cpus.begin(), core.cpus.end()));
    };
    std::sort(cores_.begin(), cores_.end(),
              [&](const Core& a, const Core& b) { return place(a) < place(b); });
  }

  // Task i gets GPU i of the list: programs choose their device by local rank.
  void share_gpus() {
    const std::size_t tasks = static_cast<std::size_t>(request_.tasks);
    const std::size_t count = request_.gpus.size();
    gpus_.resize(tasks);
    for (std::size_t t = 0; t < tasks && count > 0; ++t) {
      const std::size_t begin = t * count / tasks;
      const std::size_t end = std::max(begin + 1, (t + 1) * count / tasks);
      for (std::size_t g = begin; g < end; ++g) gpus_[t].push_back(request_.gpus[g]);
    }
  }

  // The number of cores for cpus_per_task CPUs, counting each core as the one with the fewest usable threads; 0: no
  // limit.
  int cores_per_task() const {
    if (request_.cpus_per_task == 0) return 0;
    std::size_t fewest = cores_.front().cpus.size();
    for (const Core& core : cores_) fewest = std::min(fewest, core.cpus.size());
    return (request_.cpus_per_task + static_cast<int>(fewest) - 1) / static_cast<int>(fewest);
  }

  // The domains with usable cores that the GPUs are attached to, or else those of the same packages.
  std::vector<int> domains_near(const std::vector<int>& gpus) const {
    std::set<int> wanted;
    std::set<int> packages;
    for (const int gpu : gpus) {
      for (const int d : machine_.gpus[static_cast<std::size_t>(gpu)].domains) {
        wanted.insert(d);
        packages.insert(machine_.domains[static_cast<std::size_t>(d)].package);
      }
    }
    std::set<int> near;
    std::set<int> nearby;
    for (const Core& core : cores_) {
      if (wanted.count(core.domain) > 0) near.insert(core.domain);
      if (packages.count(core.package) > 0) nearby.insert(core.domain);
    }
    if (near.empty()) near = nearby;
    return {near.begin(), near.end()};
  }

  int idle_cores(const std::vector<TaskCores>& placements) const {
    std::size_t used = 0;
    for (const TaskCores& placement : placements) used += placement.sharers == 1 ? placement.cores.size() : 0;
    return request_.tasks > static_cast<int>(cores_.size()) ? 0 : static_cast<int>(cores_.size() - used);
  }

  TaskPlan plan_task(int task, const TaskCores& placement, int idle) const {
    TaskPlan plan;
    plan.task = task;
    const bool share = choose_cpus(placement, plan);
    plan.numa = memory_of(placement.domains);
    name_gpus(plan);
    plan.threads = static_cast<int>(plan.cpus.size());
    plan.places = openmp_places(cores_, plan.cpus);
    plan.why = explain({machine_, request_, placement, plan, gpus_[static_cast<std::size_t>(task)],
                        static_cast<int>(cores_.size()), idle, share, unusable_});
    return plan;
  }

  // Fills cpus and worker_cpus; true if the workers must share the compute CPUs. Workers take first the
  // hardware threads that smt leaves free, then CPUs from the end of the share.
  bool choose_cpus(const TaskCores& placement, TaskPlan& plan) const {
    std::vector<int> compute;
    std::vector<int> spare;
    int left = request_.cpus_per_task > 0 ? request_.cpus_per_task : static_cast<int>(usable_.size());
    for (const std::vector<int>& core : placement.cores) {
      int used = 0;
      for (const int cpu : core) {
        if (left-- <= 0) break;
        (request_.smt == 0 || used++ < request_.smt ? compute : spare).push_back(cpu);
      }
    }
    const std::size_t workers = static_cast<std::size_t>(request_.workers);
    const bool share = workers > 0 && workers >= compute.size() + spare.size();
    if (share) {
      plan.worker_cpus = compute;
    } else {
      while (plan.worker_cpus.size() < workers) {
        std::vector<int>& from = spare.empty() ? compute : spare;
        plan.worker_cpus.push_back(from.back());
        from.pop_back();
      }
    }
    plan.cpus = sorted_set(compute);
    plan.worker_cpus = sorted_set(plan.worker_cpus);
    return share;
  }

  std::vector<int> memory_of(const std::vector<int>& domains) const {
    std::vector<int> nodes;
    if (request_.memory == Memory::local) {
      for (const int d : domains) nodes.push_back(machine_.domains[static_cast<std::size_t>(d)].memory_node);
    } else if (request_.memory == Memory::interleave) {
      for (const Core& core : cores_) {
        nodes.push_back(machine_.domains[static_cast<std::size_t>(core.domain)].memory_node);
      }
    }
    return sorted_set(nodes);
  }

  void name_gpus(TaskPlan& plan) const {
    for (const int gpu : gpus_[static_cast<std::size_t>(plan.task)]) {
      plan.gpus.push_back(machine_.gpus[static_cast<std::size_t>(gpu)].bus_id);
    }
  }

  std::vector<TaskPlan> unpinned() const {
    std::vector<TaskPlan> plans;
    plans.reserve(static_cast<std::size_t>(request_.tasks));
    for (int task = 0; task < request_.tasks; ++task) {
      TaskPlan plan;
      plan.task = task;
      plan.cpus = usable_;
      if (request_.memory == Memory::interleave) plan.numa = memory_of({});
      name_gpus(plan);
      plan.threads = std::max(1, static_cast<int>(usable_.size()) / request_.tasks);
      plan.why = "pinning is off: any allowed CPU";
      plans.push_back(std::move(plan));
    }
    return plans;
  }

  const Machine& machine_;
  const Request& request_;
  std::vector<Core> cores_;             // with at least one usable CPU; lists usable CPUs only
  std::vector<int> usable_, unusable_;  // of the requested CPUs
  std::vector<std::vector<int>> gpus_;  // of each task, indices into Machine::gpus
};

template <typename Value>
Value parse_word(std::string_view text, const char* what,
                 const std::vector<std::pair<std::string_view, Value>>& words) {
  std::vector<std::string_view> valid;
  for (const auto& [word, value] : words) {
    if (word == text) return value;
    valid.push_back(word);
  }
  fail_usage("{} '{}' is unknown; valid values: {}", what, text, fmt::join(valid, ", "));
}

}  // namespace

Policy parse_policy(std::string_view text) {
  return parse_word<Policy>(text, "policy",
                            {{"auto", Policy::automatic},
                             {"numa", Policy::numa},
                             {"cache", Policy::cache},
                             {"core", Policy::core},
                             {"off", Policy::off}});
}

Memory parse_memory(std::string_view text) {
  return parse_word<Memory>(
      text, "memory", {{"local", Memory::local}, {"interleave", Memory::interleave}, {"off", Memory::off}});
}

std::vector<TaskPlan> make_plan(const Machine& machine, const Request& request) {
  return Planner(machine, request).run();
}

}  // namespace lockstep::affinity
