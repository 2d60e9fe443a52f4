// lockstep-doctor: what on this node, or in this job, would make training fail or slow, and the command that mends it.

#include <fmt/format.h>

#include "common/process.h"
#include "common/tool.h"
#include "plugin/affinity/topology.h"
#include "plugin/doctor/checks.h"

namespace {

using namespace lockstep;
using namespace lockstep::doctor;

struct Call {
  std::string config;
  std::string program;
  std::string prometheus;
  std::string measure;
  bool verbose = false;
};

void check_node(const Call& call, const std::optional<Task>& task, Report& report) {
  const bool slurm = check_slurm(report);
  const auto line = slurm ? find_plugin_line(plugstack_file()) : std::nullopt;
  const auto config = read_configuration(call.config, line, report);
  const std::string prefix = config ? config->prefix : "";
  if (slurm) check_plugin(line, prefix, report);
  if (config) {
    check_helpers(*config, report);
    check_group(*config, report);
    check_folders(*config, report);
    check_cache(*config, report);
    check_exporter(*config, report);
    check_peer_network(*config, report);
  }
  if (!call.measure.empty()) check_disks(call.measure, config.value_or(Config{}), report);
  if (!call.prometheus.empty()) check_prometheus(call.prometheus, node_name(), report);
  if (slurm) check_slurmctld(config, report);
  if (slurm) check_pmix(report);
  check_shared_memory("/dev/shm", report);
  check_libraries(call.program, report);
  check_gpus(report);
  check_gpu_network(affinity::load_live(affinity::Devices::find), report);
  if (task) check_cpus(*task, prefix, report);
}

/// Returns false if a finding is an error.
bool examine(const Tool& tool, const Call& call) {
  const std::optional<Task> task = this_task();
  if (task && task->number != 0) return true;  // one task speaks for its node
  Report report;
  check_node(call, task, report);
  if (tool.json()) {
    Tool::print(to_json(node_name(), report));
  } else {
    fmt::print("{}", to_text(node_name(), report, call.verbose));
  }
  return !report.failed();
}

}  // namespace

int main(int argc, char** argv) {
  Tool tool("lockstep-doctor",
            "Finds what makes jobs fail or slow: on this node, or with srun on all nodes of a job.");
  Call call;
  tool.app()
      .add_option("--program", call.program, "Check the libraries of this program, or of a libtorch_cpu.so")
      ->type_name("FILE")
      ->check(Tool::named());
  tool.app()
      .add_option("--prometheus", call.prometheus,
                  "Check that Prometheus has this node, such as http://head:9090")
      ->type_name("URL")
      ->check(Tool::named());
  tool.app()
      .add_option("--config", call.config, "Default: the file that plugstack.conf names")
      ->type_name("LOCKSTEP.CONF")
      ->check(Tool::named());
  tool.app()
      .add_option("--measure", call.measure,
                  "Compare the speeds of this source and of the node's cache, in four seconds")
      ->type_name("SOURCE")
      ->check(Tool::named());
  tool.app().add_flag("--verbose", call.verbose, "Also print what is in order");
  bool good = true;
  const int code = tool.run(argc, argv, [&] { good = examine(tool, call); });
  return code != 0 ? code : good ? 0 : 1;
}
