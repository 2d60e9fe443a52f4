#include "plugin/affinity/run.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>

#include "common/error.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"
#include "plugin/affinity/topology.h"

namespace lockstep::affinity {
namespace {

LocalRank choose_rank(const RunRequest& request) {
  LocalRank chosen;
  if (!request.tasks || !request.local_rank) chosen = find_local_rank().value_or(LocalRank{});
  if (request.tasks) {
    chosen.size = *request.tasks;
    chosen.bound_by_launcher = false;
  }
  if (request.local_rank) chosen.rank = *request.local_rank;
  if (chosen.rank < 0 || chosen.rank >= chosen.size) {
    fail_usage("local rank {} is not one of {} tasks; give --tasks the number of tasks on this node",
               chosen.rank, chosen.size);
  }
  return chosen;
}

void set_default(const std::string& name, const std::string& value, bool replace) {
  if (::setenv(name.c_str(), value.c_str(), replace ? 1 : 0) != 0) fail_errno("cannot set {}", name);
}

// The variables that a pinned task finds (docs/users/pinning.md).
std::vector<std::pair<std::string, std::string>> task_environment(const TaskPlan& plan) {
  std::vector<std::pair<std::string, std::string>> variables{
      {"LOCKSTEP_CPUS", format_cpu_list(plan.cpus)},
      {"LOCKSTEP_WORKER_CPUS", format_cpu_list(plan.worker_cpus)},
      {"LOCKSTEP_NUMA", format_cpu_list(plan.numa)},
      {"LOCKSTEP_GPUS", fmt::format("{}", fmt::join(plan.gpus, ","))},
      {"OMP_NUM_THREADS", std::to_string(plan.threads)}};
  if (!plan.places.empty()) {
    variables.emplace_back("OMP_PLACES", plan.places);
    variables.emplace_back("OMP_PROC_BIND", "close");
  }
  return variables;
}

}  // namespace

void run_pinned(const RunRequest& request) {
  const LocalRank rank = choose_rank(request);
  const Machine machine = load_live(request.options.gpus.empty() ? Devices::skip : Devices::find);
  Request wanted = request.options.request(machine, rank.size);
  if (wanted.within.empty() && !rank.bound_by_launcher) wanted.within = cpus_of_this_thread();
  const TaskPlan plan = make_plan(machine, wanted)[static_cast<std::size_t>(rank.rank)];

  std::vector<int> mask = plan.cpus;
  mask.insert(mask.end(), plan.worker_cpus.begin(), plan.worker_cpus.end());
  bind_this_thread(mask);
  if (wanted.memory == Memory::interleave) interleave_memory(plan.numa);
  for (const auto& [name, value] : task_environment(plan)) {
    set_default(name, value, name.starts_with("LOCKSTEP_"));
  }
  if (request.explain) {
    fmt::print(stderr, "lockstep-pin: local rank {} of {}: CPUs {}: {}\n", rank.rank, rank.size,
               format_cpu_list(mask), plan.why);
  }
  std::vector<char*> arguments;
  for (const std::string& word : request.command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments.front(), arguments.data());
  fail_errno("cannot run {}", request.command.front());
}

}  // namespace lockstep::affinity
