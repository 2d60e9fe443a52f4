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
