#include "plugin/spank/staging/staging.h"

#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <string_view>

#include "common/leaf/source_name.h"
#include "common/leaf/split.h"
#include "plugin/spank/process/process.h"
#include "plugin/spank/process/report.h"
#include "plugin/spank/staging/sources.h"

namespace lockstep::spank {
namespace {

constexpr int kSignalled = 128;

// By scancel or Ctrl-C.
bool was_cancelled(int code) {
  return code == kSignalled + SIGTERM || code == kSignalled + SIGINT;
}

// `before`, a number, `after`
bool has_number(std::string_view text, std::string_view before, std::string_view after) {
  const std::size_t begin = text.find(before);
  if (begin == std::string_view::npos) return false;
  text.remove_prefix(begin + before.size());
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  return digits > 0 && text.substr(digits).starts_with(after);
}

}  // namespace

bool was_killed(int code) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS}) {
    if (code == kSignalled + signal) return true;
  }
  return false;
}

bool is_data_folder(const std::string& folder, uid_t uid) {
  const std::string jobs = "/" + std::to_string(uid) + "/jobs/";
  if (has_number(folder, jobs, "/data")) return folder.ends_with("/data");
  if (!has_number(folder, jobs, "-")) return false;
  const std::size_t restart = folder.find('-', folder.find(jobs));
  return folder.ends_with("/data") && has_number(folder.substr(restart), "-", "/data");
}

bool is_record_folder(const std::string& folder, const std::string& records, uid_t uid) {
  const std::string of_user = records + "/" + std::to_string(uid) + "/";
  return folder.starts_with(of_user) && has_number(folder, of_user, ".");
}

const std::string& tier_folder(const Config& config, const Settings& settings) {
  return settings.tier == "ram" ? config.ram_cache : config.cache;
}

std::string data_folder(const StepOnNode& step) {
  const std::string restart = step.restart.empty() ? "" : "-" + step.restart;
  return step.store + "/jobs/" + std::to_string(step.job) + restart + "/data";
}

namespace {

// The nodes of a step read about equal shares of the sources.
std::uint64_t read_bandwidth(const Config& config, std::uint32_t nodes) {
  if (config.source_bandwidth == 0) return config.bandwidth;
  const std::uint64_t share =
      std::max<std::uint64_t>(1, config.source_bandwidth / std::max<std::uint32_t>(1, nodes));
  return config.bandwidth == 0 ? share : std::min(config.bandwidth, share);
}

}  // namespace

std::vector<std::string> step_arguments(const StepOnNode& step, const Config& config,
                                        const Settings& settings) {
  std::vector<std::string> arguments{helper_program(config.helpers, "lockstep-stage"), "step"};
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) arguments.insert(arguments.end(), {option, value});
  };
  const auto add_size = [&](const char* option, std::uint64_t value) {
    if (value > 0) add(option, std::to_string(value));
  };
  const bool ram = settings.tier == "ram";
  // Without a store there is a problem to report, and the helper opens no cache.
  add("--cache", step.store.empty() ? "/nonexistent" : step.store);
  add("--job", std::to_string(step.job));
  add("--restart", step.restart);
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
  if (!ram) add_size("--min-free", config.min_free);
  add("--keep", std::to_string(config.keep));
  add("--shared", config.shared);
  add("--lease", step.lease);
  add_size("--bandwidth", read_bandwidth(config, step.nodes));
  add_size("--source-patience", static_cast<std::uint64_t>(config.source_patience));
  if (step.lifetime_fd >= 0) add("--watch-fd", std::to_string(kFirstDescriptor));
  add("--cpus", step.cpus);
  add("--cooperate", config.cooperate ? "on" : "off");
  if (config.first_port > 0) {
    add("--ports", std::to_string(config.first_port) + "-" + std::to_string(config.last_port));
  }
  add("--peer-network", join(config.peer_networks, ","));
  add("--record", step.record);
  return arguments;
}

std::vector<std::string> sources_on_node(const Settings& settings, const Config& config,
                                         const SrunLink* link) {
  std::vector<std::string> sources;
  for (const std::string& source : settings.sources) {
    if (!source.starts_with('/') && link == nullptr) {
      throw Error("--stage: " + source +
                  " is relative, and this node does not know the folder: give the whole path");
    }
    sources.push_back(absolute_source(source, link != nullptr ? link->folder : "/"));
  }
  check_names(sources, config.sources);
  return sources;
}

std::string missing_source(const StepOnNode& step, const std::vector<std::string>& sources) {
  for (const std::string& source : sources) {
    struct stat about {};
    const std::string name = data_folder(step) + "/" + entry_name(source);
    const auto is_there = [&](const char* ending) { return ::lstat((name + ending).c_str(), &about) == 0; };
    // A Megatron pair is named by the common prefix of its two files.
    if (!is_there("") && !(is_there(".bin") && is_there(".idx"))) return source;
  }
  return "";
}

WorkResult stage(const StepOnNode& step, const Config& config, const Settings& settings,
                 const SrunLink* link) {
  const std::string program = helper_program(config.helpers, "lockstep-stage");
  std::string problem = step.problem;
  std::vector<std::string> sources;
  try {
    sources = sources_on_node(settings, config, link);
  } catch (const Error& error) {
    if (problem.empty()) problem = error.what();
  }
  const auto run_helper = [&] {
    Command command;
    command.arguments = step_arguments(step, config, settings);
    if (step.lifetime_fd >= 0) command.descriptors = {step.lifetime_fd};
    // Every user of the machine can read the arguments.
    command.arguments.emplace_back("--names-from-stdin");
    command.input = problem + '\0';
    for (const std::string& source : sources) command.input += source + '\0';
    if (step.nodes > 1 && link != nullptr && link->port > 0) {
      command.environment = {
          "LOCKSTEP_RENDEZVOUS=" + std::to_string(link->port) + " " + step.srun_address + " " + link->host,
          "LOCKSTEP_RENDEZVOUS_KEY=" + link->key};
    }
    return run(command).exit_code;
  };
  try {
    const auto reason = [](int code) {
      return "staging was ended by signal " + std::to_string(code - kSignalled);
    };
    int code = run_helper();
    if (was_killed(code)) {
      if (problem.empty()) problem = reason(code);
      code = run_helper();
    }
    if (was_cancelled(code)) return WorkResult::killed;
    // On several nodes the rendezvous reports helpers that ended, unless it has ended too.
    const bool unreported = step.nodes == 1 || link == nullptr || link->port <= 0 || step.node_id == 0;
    if (code > kSignalled && unreported) say(step.node + ": " + reason(code));
    if (code == kCannotStart) say(step.node + ": " + program + " could not be started");
    if (code != 0) return WorkResult::failed;
  } catch (const Error& error) {
    say(step.node + ": " + error.what());
    return WorkResult::failed;
  }
  const std::string missing = missing_source(step, sources);
  if (missing.empty()) return WorkResult::succeeded;
  say(step.node + ": " + program + " succeeded, but " + missing + " is not in " + data_folder(step) +
      ": check that 'helpers' in lockstep.conf names the right program");
  return WorkResult::failed;
}

}  // namespace lockstep::spank
