#include "plugin/affinity/run.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "common/cpu_list.h"
#include "common/error.h"
#include "plugin/affinity/launcher.h"
#include "plugin/affinity/topology.h"

namespace lockstep::affinity {
namespace {

LocalRank choose_rank(const RunRequest& request) {
  LocalRank chosen;
  if (!request.tasks || !request.local_rank) chosen = find_local_rank().value_or(LocalRank{});
  if (request.tasks) {
    chosen.size = *request.tasks;
    chosen.mask_is_launchers = false;
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

// A place for each core, with those of its hardware threads that compute: "{0,48},{1,49}".
std::string openmp_places(const Machine& machine, const std::vector<int>& cpus) {
  std::vector<std::string> places;
  for (const Core& core : machine.cores) {
    std::vector<int> here;
    std::copy_if(core.cpus.begin(), core.cpus.end(), std::back_inserter(here),
                 [&](int cpu) { return std::binary_search(cpus.begin(), cpus.end(), cpu); });
    if (!here.empty()) places.push_back(fmt::format("{{{}}}", fmt::join(here, ",")));
  }
  return fmt::format("{}", fmt::join(places, ","));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> task_environment(const Machine& machine,
                                                                  const TaskPlan& plan, Policy policy) {
  std::vector<std::pair<std::string, std::string>> variables{
      {"LOCKSTEP_CPUS", format_cpu_list(plan.cpus)},
      {"LOCKSTEP_WORKER_CPUS", format_cpu_list(plan.worker_cpus)},
      {"LOCKSTEP_NUMA", format_cpu_list(plan.numa)},
      {"LOCKSTEP_GPUS", fmt::format("{}", fmt::join(plan.gpus, ","))},
      {"OMP_NUM_THREADS", std::to_string(plan.threads)}};
  if (policy != Policy::off) {
    variables.emplace_back("OMP_PLACES", openmp_places(machine, plan.cpus));
    variables.emplace_back("OMP_PROC_BIND", "close");
  }
  return variables;
}

void run_pinned(const RunRequest& request) {
  const LocalRank rank = choose_rank(request);
  const Machine machine = load_live(request.options.gpus.empty() ? Devices::skip : Devices::find);
  Request wanted = request.options.request(machine, rank.size);
  if (wanted.within.empty() && !rank.mask_is_launchers) wanted.within = cpus_of_this_thread();
  const TaskPlan plan = make_plan(machine, wanted)[static_cast<std::size_t>(rank.rank)];

  std::vector<int> mask = plan.cpus;
  mask.insert(mask.end(), plan.worker_cpus.begin(), plan.worker_cpus.end());
  bind_this_thread(mask);
  if (wanted.memory == Memory::interleave) interleave_memory(plan.numa);
  for (const auto& [name, value] : task_environment(machine, plan, wanted.policy)) {
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
