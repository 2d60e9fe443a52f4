#include "plugin/spank/staging.h"

#include <csignal>

#include "plugin/spank/process.h"
#include "plugin/spank/report.h"
#include "plugin/spank/sources.h"

namespace lockstep::spank {
namespace {

constexpr int kSignalled = 128;

}  // namespace

const std::string& tier_folder(const Config& config, const Settings& settings) {
  return settings.tier == "ram" ? config.ram_cache : config.cache;
}

std::string data_folder(const StepOnNode& step) {
  return step.store + "/jobs/" + std::to_string(step.job) + "/data";
}

std::vector<std::string> step_arguments(const StepOnNode& step, const Config& config,
                                        const Settings& settings) {
  std::vector<std::string> arguments{config.helpers + "/lockstep-stage", "step"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  const auto add_size = [&](const char* option, std::uint64_t value) {
    if (value > 0) add(option, std::to_string(value));
  };
  const bool ram = settings.tier == "ram";
  add("--cache", step.store);
  add("--job", std::to_string(step.job));
  add("--step", step.step);
  add("--node", step.node);
  add("--node-id", std::to_string(step.node_id));
  add("--nodes", std::to_string(step.nodes));
  add("--node-list", step.node_list);
  add("--component", step.component);
  add("--mode", settings.mode);
  add("--on-error", settings.on_error);
  add("--verify", settings.verify);
  add_size("--quota", ram ? config.ram : config.quota);
  if (!ram) add_size("--total", config.total);
  add("--keep", std::to_string(config.keep));
  add("--shared", config.shared);
  add("--lease", step.lease);
  add_size("--bandwidth", config.bandwidth);
  add_size("--source-patience", static_cast<std::uint64_t>(config.source_patience));
  if (step.alive >= 0) add("--watch-fd", std::to_string(kFirstGiven));
  add("--cpus", step.cpus);
  add("--cooperate", config.cooperate ? "on" : "off");
  if (config.first_port > 0) {
    add("--ports", std::to_string(config.first_port) + "-" + std::to_string(config.last_port));
  }
  add("--record", step.record);
  add("--problem", step.problem);
  return arguments;
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
  Command command;
  command.arguments = step_arguments(step, config, settings);
  if (step.alive >= 0) command.descriptors = {step.alive};
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
