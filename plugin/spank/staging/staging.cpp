#include "plugin/spank/staging/staging.h"

#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <string_view>

#include "common/leaf/source_name.h"
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
  const std::string restart = step.restart == 0 ? "" : "-" + std::to_string(step.restart);
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

// The sources as absolute paths. Throws Error for a relative one without a link.
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

}  // namespace

transfer::StepRequest request_for(const StepOnNode& step, const Config& config, const Settings& settings,
                                  const SrunLink* link) {
  transfer::StepRequest request = step;
  const bool ram = settings.tier == "ram";
  // Without a store there is a problem to report, and the helper opens no cache.
  if (request.store.empty()) request.store = "/nonexistent";
  try {
    request.sources = sources_on_node(settings, config, link);
  } catch (const Error& error) {
    if (request.problem.empty()) request.problem = error.what();
  }
  if (step.nodes > 1 && link != nullptr && link->port > 0) {
    request.srun_port = link->port;
    request.srun_hosts.push_back(link->host);
    request.key = link->key;
  }
  if (step.lifetime_fd >= 0) {
    request.mode = transfer::StepMode::background;
    request.watch_fd = kFirstDescriptor;
  }
  if (settings.on_error == "source") request.on_error = transfer::OnError::source;
  request.verify = settings.verify;
  request.shared = config.shared;
  request.quota = ram ? config.ram : config.quota;
  request.min_free = ram ? 0 : config.min_free;
  request.keep = config.keep;
  request.bandwidth = read_bandwidth(config, step.nodes);
  request.source_patience = config.source_patience;
  request.cooperate = config.cooperate;
  request.first_port = config.first_port;
  request.last_port = config.last_port;
  request.peer_networks = config.peer_networks;
  return request;
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
  transfer::StepRequest request = request_for(step, config, settings, link);
  const auto run_helper = [&] {
    Command command;
    command.arguments = {program, "step"};
    command.input = to_text(request);
    if (step.lifetime_fd >= 0) command.descriptors = {step.lifetime_fd};
    return run(command).exit_code;
  };
  try {
    const auto reason = [](int code) {
      return "staging was ended by signal " + std::to_string(code - kSignalled);
    };
    int code = run_helper();
    if (was_killed(code)) {
      if (request.problem.empty()) request.problem = reason(code);
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
  const std::string missing = missing_source(step, request.sources);
  if (missing.empty()) return WorkResult::succeeded;
  say(step.node + ": " + program + " succeeded, but " + missing + " is not in " + data_folder(step) +
      ": check that 'helpers' in lockstep.conf names the right program");
  return WorkResult::failed;
}

}  // namespace lockstep::spank
