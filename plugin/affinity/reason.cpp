#include "plugin/affinity/reason.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "common/leaf/cpu_list.h"

namespace lockstep::affinity {
namespace {

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

}  // namespace

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

}  // namespace lockstep::affinity
