// lockstep-pin: which CPUs, memory and GPUs each task of a job gets on a node, and why.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "common/launcher.h"
#include "common/leaf/cpu_list.h"
#include "common/tool.h"
#include "common/units.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/topology.h"

namespace {

using namespace lockstep;
using namespace lockstep::affinity;

/// The options of a plan, of both verbs.
struct PlanOptions {
  std::string policy = "auto";
  std::string memory = "local";
  std::string gpus;
  std::string within;
  int cpus_per_task = 0;
  int workers = 0;
  int smt = 0;

  void add_to(CLI::App& app) {
    app.add_option("--policy", policy, "How to place the tasks: auto, numa, cache, core or off")
        ->type_name("POLICY");
    app.add_option("--cpus-per-task", cpus_per_task, "Maximum number of CPUs per task; 0: share all CPUs")
        ->type_name("C");
    app.add_option("--gpus", gpus, "PCI addresses or indices, distributed to the tasks in this order, or all")
        ->type_name("LIST|all");
    app.add_option("--restrict", within, "Only these CPUs, as a list (0-11,48-59)")->type_name("CPUSET");
    app.add_option("--workers", workers, "CPUs of each task's share for loader threads")->type_name("W");
    app.add_option("--smt", smt, "Maximum number of hardware threads of a core that compute; 0: all")
        ->type_name("K");
    app.add_option("--mem", memory, "NUMA nodes of the memory: local, interleave or off")->type_name("MEM");
  }

  /// Reads the values. Throws UsageError naming an invalid one.
  Request request(const Machine& machine, int tasks) const {
    Request request;
    request.tasks = tasks;
    request.cpus_per_task = cpus_per_task;
    request.within = parse_cpu_list(within);
    request.gpus = find_gpus(machine, gpus);
    request.workers = workers;
    request.smt = smt;
    request.policy = parse_policy(policy);
    request.memory = parse_memory(memory);
    return request;
  }
};

struct PlanCall {
  PlanOptions options;
  std::string topology;
  std::string svg;
  int tasks = 0;
  bool plain = false;
};

void plan(const Tool& tool, const PlanCall& call) {
  const bool live = call.topology.empty();
  const Devices devices = call.options.gpus.empty() ? Devices::skip : Devices::find;
  const Machine machine = live ? load_live(devices) : load_description(call.topology);
  Request request = call.options.request(machine, call.tasks);
  if (live && request.within.empty()) request.within = cpus_of_this_thread();
  const std::vector<TaskPlan> plans = make_plan(machine, request);
  if (!call.svg.empty()) write_output(call.svg, draw_plan(machine, plans));
  if (tool.json()) {
    Tool::print(to_json(machine, plans));
  } else {
    fmt::print("{}", call.plain ? to_plain(plans) : to_table(plans));
  }
}

struct RunRequest {
  PlanOptions options;
  std::optional<int> tasks;       ///< on this node; default: from the launcher, or 1
  std::optional<int> local_rank;  ///< default: from the launcher, or 0
  bool explain = false;           ///< print the plan's reason on standard error
  std::vector<std::string> command;
};

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

// `lockstep-pin run`: this process executes the command on the CPUs of its plan. Throws Error naming the command if it
// cannot be started.
[[noreturn]] void run_pinned(const RunRequest& request) {
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

}  // namespace

int main(int argc, char** argv) {
  Tool tool("lockstep-pin", "Binds each task of a job to CPUs next to its memory and its GPU.");

  PlanCall plan_call;
  CLI::App& plan_verb =
      tool.verb("plan", "Print a plan for this node or for a described one", [&] { plan(tool, plan_call); });
  plan_verb
      .add_option("--topology", plan_call.topology, "A file from lstopo FILE.xml, or 'package:2 core:8 pu:2'")
      ->type_name("FILE.xml|SYNTHETIC");
  plan_verb.add_option("--tasks", plan_call.tasks, "Tasks on the node")->type_name("N")->required();
  plan_call.options.add_to(plan_verb);
  plan_verb.add_flag("--plain", plan_call.plain,
                     "One line per task: TASK CPUS WORKER_CPUS NUMA THREADS GPUS PLACES");
  plan_verb.add_option("--svg", plan_call.svg, "Also draw the plan into this file")->type_name("FILE");

  RunRequest run_request;
  CLI::App& run_verb = tool.verb("run", "Pin a command without Slurm: lockstep-pin run [options] -- COMMAND",
                                 [&] { run_pinned(run_request); });
  run_verb
      .add_option("--tasks", run_request.tasks, "Tasks on this node; default: from mpirun, srun or torchrun")
      ->type_name("N");
  run_verb
      .add_option("--local-rank", run_request.local_rank,
                  "Number of this task, from 0; default: from mpirun, srun or torchrun")
      ->type_name("R");
  run_verb.add_flag("--explain", run_request.explain,
                    "Print where the command runs, and why, on standard error");
  run_request.options.add_to(run_verb);
  run_verb.add_option("COMMAND", run_request.command, "The command and its arguments, after --")->required();

  return tool.run(argc, argv);
}
