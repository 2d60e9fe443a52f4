#include <algorithm>
#include <charconv>

#include "common/environment.h"
#include "common/error.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"
#include "common/process.h"
#include "plugin/affinity/topology.h"
#include "plugin/doctor/checks.h"
#include "staging/rendezvous/node_names.h"

namespace lockstep::doctor {
namespace {

int openmp_threads() {
  // "4,2" sets nested levels too; the outermost counts.
  const std::string text = environment::get_or("OMP_NUM_THREADS", "");
  int threads = 0;
  std::from_chars(text.data(), text.data() + text.size(), threads);
  return threads;
}

// In a step, Slurm's variables have the CPUs of the job; the cgroup has those of the step only.
int cpus_of_job(const affinity::Machine& machine) {
  const auto counts = environment::get("SLURM_JOB_CPUS_PER_NODE");
  if (!counts) return static_cast<int>(machine.allowed.size());
  const auto nodes = transfer::expand_node_list(environment::get_or("SLURM_JOB_NODELIST", ""));
  const auto self = std::find(nodes.begin(), nodes.end(), node_name());
  return tasks_on_node(*counts, self == nodes.end() ? 0 : self - nodes.begin());
}

struct BoundCores {
  int count = 0;
  int threads_per_core = 1;
};

BoundCores cores_of(const std::vector<int>& mask, const affinity::Machine& machine) {
  BoundCores bound;
  for (const affinity::Core& core : machine.cores) {
    const auto mine = [&](int cpu) { return std::binary_search(mask.begin(), mask.end(), cpu); };
    if (!std::any_of(core.cpus.begin(), core.cpus.end(), mine)) continue;
    ++bound.count;
    bound.threads_per_core = std::max(bound.threads_per_core, static_cast<int>(core.cpus.size()));
  }
  return bound;
}

}  // namespace

std::optional<Task> this_task() {
  const auto found = find_local_rank();
  if (!found) return std::nullopt;
  return Task{found->number, found->on_node};
}

void check_cpus(const Task& task, const std::string& option_prefix, Report& report) {
  const affinity::Machine machine = affinity::load_live(affinity::Devices::skip);
  const int job_cpus = cpus_of_job(machine);
  const std::vector<int> mask = cpus_of_this_thread();
  const BoundCores bound = cores_of(mask, machine);
  const int share = job_cpus / task.on_node;
  const std::string tasks = fmt::format("{} task{}", task.on_node, task.on_node == 1 ? "" : "s");
  if (bound.count == 1 && share >= 2 * bound.threads_per_core) {
    report.warning(
        "binding",
        fmt::format("this task has one core (CPU {}), and the job has {} CPUs for {} on this node",
                    format_cpu_list(mask), job_cpus, tasks),
        "Training on one core leaves the others idle.",
        fmt::format("srun --cpus-per-task={} --{}pin=auto, or mpirun --bind-to none", share, option_prefix));
  } else {
    report.ok("binding", fmt::format("this task may use the CPUs {}", format_cpu_list(mask)));
  }
  const int threads = openmp_threads();
  if (threads <= 0) return;  // a World divides the CPUs among its ranks
  const int fitting = std::min(std::max(1, share), static_cast<int>(mask.size()));
  if (threads <= fitting && task.on_node <= job_cpus) {
    return report.ok("threads", fmt::format("OMP_NUM_THREADS={} fits", threads));
  }
  report.error(
      "threads",
      fmt::format("OMP_NUM_THREADS={} for {}: the job has {} CPUs on this node, and this task may use {}",
                  threads, tasks, job_cpus, mask.size()),
      "OpenMP threads that share a CPU wait for each other at every operation.",
      fmt::format("export OMP_NUM_THREADS={}, or unset it and use --{}pin=auto", fitting, option_prefix));
}

}  // namespace lockstep::doctor
