// lockstep-pin: which CPUs, memory and GPUs each task of a job gets on a node, and why.

#include <fmt/format.h>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "common/output.h"
#include "common/tool.h"
#include "common/units.h"
#include "plugin/affinity/options.h"
#include "plugin/affinity/picture.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/processes.h"
#include "plugin/affinity/run.h"
#include "plugin/affinity/topology.h"

namespace {

using namespace lockstep;
using namespace lockstep::affinity;

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

nlohmann::json to_json(const ProcessView& view) {
  nlohmann::json threads = nlohmann::json::array();
  for (const ThreadGroup& group : view.groups) {
    threads.push_back(
        {{"cpus", group.mask}, {"threads", group.threads}, {"last_cpus", format_cpu_list(group.last)}});
  }
  nlohmann::json memory = nlohmann::json::object();
  for (const auto& [node, bytes] : view.node_bytes) memory[std::to_string(node)] = bytes;
  return {{"pid", view.pid},
          {"command", view.command},
          {"masks", threads},
          {"numa_bytes", memory},
          {"policy_bytes", view.policy_bytes}};
}

void print_text(const ProcessView& view) {
  constexpr std::size_t kWidth = 100;
  fmt::print("{} {}\n", view.pid, view.command.substr(0, kWidth));
  for (const ThreadGroup& group : view.groups) {
    fmt::print("  {:>4} thread{} on CPUs {}, last on {}\n", group.threads, group.threads == 1 ? "" : "s",
               group.mask, format_cpu_list(group.last));
  }
  for (const auto& [node, bytes] : view.node_bytes)
    fmt::print("  {:>11} on NUMA node {}\n", format_bytes(bytes), node);
  for (const auto& [policy, bytes] : view.policy_bytes)
    fmt::print("  {:>11} under the memory policy {}\n", format_bytes(bytes), policy);
}

void show(const Tool& tool, const std::vector<int>& pids) {
  for (const int pid : pids) {
    const ProcessView view = view_process(pid);
    if (tool.json()) {
      Tool::print(to_json(view));
    } else {
      print_text(view);
    }
  }
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

  std::vector<int> pids;
  CLI::App& show_verb =
      tool.verb("show", "Print the CPUs, NUMA nodes and memory policies of running processes",
                [&] { show(tool, pids); });
  show_verb.add_option("PID", pids, "Process ids; hwloc-ps -a lists the processes of a node")->required();

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
