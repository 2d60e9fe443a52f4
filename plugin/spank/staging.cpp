#include "plugin/spank/staging.h"

#include <csignal>

#include "plugin/spank/process.h"
#include "plugin/spank/report.h"
#include "plugin/spank/sources.h"

namespace lockstep::spank {
namespace {

constexpr int kSignalled = 128;

Command step_command(const StepOnNode& step, const Config& config, const Settings& settings) {
  Command command;
  command.arguments = {config.helpers + "/lockstep-stage",
                       "step",
                       "--cache",
                       config.cache + "/" + std::to_string(step.uid),
                       "--job",
                       std::to_string(step.job),
                       "--step",
                       step.step,
                       "--node",
                       step.node,
                       "--node-id",
                       std::to_string(step.node_id),
                       "--nodes",
                       std::to_string(step.nodes),
                       "--verify",
                       settings.verify};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) command.arguments.insert(command.arguments.end(), {option, value});
  };
  add("--node-list", step.node_list);
  add("--record", step.record);
  add("--problem", step.problem);
  return command;
}

}  // namespace

std::string data_folder(const Config& config, uid_t uid, std::uint32_t job) {
  return config.cache + "/" + std::to_string(uid) + "/jobs/" + std::to_string(job) + "/data";
}

std::vector<std::string> sources_on_node(const Settings& settings, const Config& config,
                                         const SrunLink* link) {
  std::vector<std::string> sources;
  for (const std::string& source : settings.sources) {
    if (!source.starts_with('/') && link == nullptr) {
      throw Refusal("--stage: " + source +
                    " is relative, and this node does not know to what; give the whole path");
    }
    sources.push_back(absolute_source(source, link != nullptr ? link->folder : "/"));
  }
  check_names(sources, config.sources);
  return sources;
}

Ended stage(const StepOnNode& step, const Config& config, const Settings& settings, const SrunLink* link) {
  Command command = step_command(step, config, settings);
  try {
    const std::vector<std::string> sources = sources_on_node(settings, config, link);
    command.arguments.emplace_back("--");
    command.arguments.insert(command.arguments.end(), sources.begin(), sources.end());
  } catch (const Refusal& refusal) {
    if (step.problem.empty())
      command.arguments.insert(command.arguments.end(), {"--problem", refusal.what()});
  }
  if (step.nodes > 1 && link != nullptr && link->port > 0) {
    // In the environment, not among the arguments, which every user of the machine can read.
    command.environment = {
        "LOCKSTEP_RENDEZVOUS=" + std::to_string(link->port) + " " + step.srun_address + " " + link->host,
        "LOCKSTEP_RENDEZVOUS_KEY=" + link->key};
  }
  try {
    const int code = run(command).exit_code;
    if (code == kCannotStart) say(step.node + ": " + command.arguments.front() + " could not be started");
    if (code == kSignalled + SIGTERM) return Ended::killed;
    // One that a signal ended has said nothing; where there is a rendezvous, that names this node.
    if (code >= kSignalled && step.nodes == 1) {
      say(step.node + ": staging was ended by signal " + std::to_string(code - kSignalled));
    }
    return code == 0 ? Ended::well : Ended::badly;
  } catch (const Refusal& refusal) {
    say(step.node + ": " + refusal.what());
    return Ended::badly;
  }
}

}  // namespace lockstep::spank
