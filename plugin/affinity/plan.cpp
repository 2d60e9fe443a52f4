#include "plugin/affinity/plan.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <tuple>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/leaf/text.h"

namespace lockstep::affinity {
namespace {

/// The facts about one task that the reason is made of.
struct Findings {
  const Machine& machine;
  const Request& request;
  const TaskCores& placement;
  const TaskPlan& plan;
  std::vector<int> gpus;       ///< the task's GPUs, indices into Machine::gpus
  int usable_cores = 0;        ///< of the whole node
  int idle_cores = 0;          ///< without a task
  bool workers_share = false;  ///< too few CPUs for separate worker CPUs
  std::vector<int> unusable;   ///< requested CPUs that are offline or not granted
};

std::string count_of(int count, const char* thing) {
  return fmt::format("{} {}{}", count, thing, count == 1 ? "" : "s");
}

const Domain& domain(const Machine& machine, int index) {
  return machine.domains[static_cast<std::size_t>(index)];
}

const Gpu& gpu(const Machine& machine, int index) {
  return machine.gpus[static_cast<std::size_t>(index)];
}

bool is_attached(const Gpu& gpu, const std::vector<int>& domains) {
  return std::any_of(domains.begin(), domains.end(),
                     [&](int d) { return std::count(gpu.domains.begin(), gpu.domains.end(), d) > 0; });
}

std::string node_names(const Machine& machine, const std::vector<int>& domains) {
  std::vector<int> nodes;
  nodes.reserve(domains.size());
  for (const int d : domains) nodes.push_back(domain(machine, d).node);
  return fmt::format("NUMA node{} {}", nodes.size() == 1 ? "" : "s", format_cpu_list(nodes));
}

// "NUMA node 1 with GPU 0000:07:00.0"
std::string location(const Findings& f) {
  std::string text = node_names(f.machine, f.placement.domains);
  std::vector<std::string> attached;
  for (const int g : f.gpus) {
    if (is_attached(gpu(f.machine, g), f.placement.domains)) attached.push_back(gpu(f.machine, g).bus_id);
  }
  if (!attached.empty()) {
    text += fmt::format(" with GPU{} {}", attached.size() == 1 ? "" : "s", fmt::join(attached, ", "));
  }
  return text;
}

void add_gpu_notes(const Findings& f, std::vector<std::string>& notes) {
  for (const int g : f.gpus) {
    const Gpu& device = gpu(f.machine, g);
    if (device.domains.empty()) {
      notes.push_back(
          fmt::format("the topology does not tell which NUMA node GPU {} is attached to", device.bus_id));
    } else if (!is_attached(device, f.placement.domains)) {
      notes.push_back(fmt::format("GPU {} is attached to {}, which has no core for this task", device.bus_id,
                                  node_names(f.machine, device.domains)));
    }
  }
}

void add_memory_notes(const Findings& f, std::vector<std::string>& notes) {
  if (f.request.memory != Memory::local) return;
  for (const int d : f.placement.domains) {
    const Domain& at = domain(f.machine, d);
    if (at.memory_node != at.node) {
      notes.push_back(fmt::format("NUMA node {} has no usable memory; the nearest node with memory is {}",
                                  at.node, at.memory_node));
    }
  }
}

void add_share_notes(const Findings& f, std::vector<std::string>& notes) {
  const int mask = static_cast<int>(f.plan.cpus.size() + (f.workers_share ? 0 : f.plan.worker_cpus.size()));
  if (f.request.cpus_per_task > mask && f.request.smt == 0) {
    notes.push_back(fmt::format("{} requested, but an equal share is {}",
                                count_of(f.request.cpus_per_task, "CPU"), mask));
  }
  if (f.idle_cores > 0 && f.request.cpus_per_task == 0) {
    notes.push_back(fmt::format("{} of this job stay{} idle to keep shares equal and local",
                                count_of(f.idle_cores, "core"), f.idle_cores == 1 ? "s" : ""));
  }
  if (f.request.smt > 0)
    notes.push_back(
        fmt::format("at most {} of each core for compute", count_of(f.request.smt, "hardware thread")));
  if (f.workers_share) {
    notes.push_back(fmt::format("too few CPUs for {}: loaders share the compute CPUs",
                                count_of(f.request.workers, "worker CPU")));
  }
}

// The reasons of a plan in words, for users who want to know why rank 3 runs on these CPUs.
std::string explain(const Findings& f) {
  std::vector<std::string> notes;
  if (f.placement.sharers > 1) {
    notes.push_back(fmt::format("{}; more tasks than cores: {} tasks on {}, {} of them on this core",
                                location(f), f.request.tasks, count_of(f.usable_cores, "core"),
                                f.placement.sharers));
  } else {
    notes.push_back(fmt::format("{}; {} of {}", location(f),
                                count_of(static_cast<int>(f.placement.cores.size()), "core"),
                                f.usable_cores));
  }
  add_gpu_notes(f, notes);
  add_memory_notes(f, notes);
  add_share_notes(f, notes);
  if (!f.unusable.empty()) {
    notes.push_back(fmt::format("CPUs {} are offline or not granted", format_cpu_list(f.unusable)));
  }
  return fmt::format("{}", fmt::join(notes, "; "));
}

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
    PlacementRequest wanted{gpus_.size(), cores_per_task(), request_.policy, {}};
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

  // The number of cores for cpus_per_task CPUs, counting each core as the one with the fewest usable threads.
  std::size_t cores_per_task() const {
    if (request_.cpus_per_task == 0) return cores_.size();
    std::size_t fewest = cores_.front().cpus.size();
    for (const Core& core : cores_) fewest = std::min(fewest, core.cpus.size());
    return (static_cast<std::size_t>(request_.cpus_per_task) + fewest - 1) / fewest;
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

// "00000000:07:00.0" (as nvidia-smi prints it), "0000:07:00.0" and "07:00.0" are the same device.
std::string short_bus_id(std::string_view text) {
  std::string id(text);
  std::transform(id.begin(), id.end(), id.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto colons = std::count(id.begin(), id.end(), ':');
  if (colons == 1) return "0000:" + id;
  while (colons == 2 && id.find(':') > 4 && id.front() == '0') id.erase(0, 1);
  return id;
}

int find_gpu(const Machine& machine, std::string_view text) {
  const std::optional<int> index = to_number<int>(text);
  if (index && *index >= 0 && *index < static_cast<int>(machine.gpus.size())) return *index;
  for (std::size_t i = 0; !index && i < machine.gpus.size(); ++i) {
    if (machine.gpus[i].bus_id == short_bus_id(text)) return static_cast<int>(i);
  }
  std::vector<std::string> known;
  for (const Gpu& gpu : machine.gpus) known.push_back(gpu.bus_id);
  fail_usage("GPU '{}' is not in topology '{}', which has {} GPUs{}{}", text, machine.source, known.size(),
             known.empty() ? "" : ": ", fmt::join(known, ", "));
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

std::vector<int> find_gpus(const Machine& machine, const std::string& list) {
  std::vector<int> found;
  if (list == "all") {
    found.resize(machine.gpus.size());
    std::iota(found.begin(), found.end(), 0);
    return found;
  }
  if (list.empty()) return found;
  for (const std::string_view text : split(list, ',')) {
    const int gpu = find_gpu(machine, text);
    if (std::find(found.begin(), found.end(), gpu) != found.end()) {
      fail_usage("GPU list '{}' names {} twice", list, machine.gpus[static_cast<std::size_t>(gpu)].bus_id);
    }
    found.push_back(gpu);
  }
  return found;
}

}  // namespace lockstep::affinity
