#include "plugin/affinity/options.h"

#include "common/leaf/cpu_list.h"

namespace lockstep::affinity {

void PlanOptions::add_to(CLI::App& app) {
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

Request PlanOptions::request(const Machine& machine, int tasks) const {
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

}  // namespace lockstep::affinity
