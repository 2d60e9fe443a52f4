#include "plugin/spank/staging/staging.h"

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string_view>

#include "common/leaf/cpu_list.h"
#include "common/leaf/error.h"
#include "common/leaf/source_name.h"
#include "common/leaf/text.h"
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

}  // namespace

bool was_killed(int code) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE, SIGSYS}) {
    if (code == kSignalled + signal) return true;
  }
  return false;
}

bool is_data_folder(const std::string& folder, uid_t uid) {
  const std::string jobs = "/" + std::to_string(uid) + "/jobs/";
  constexpr std::string_view kData = "/data";
  const std::size_t at = folder.rfind(jobs);
  if (at == std::string::npos || !folder.ends_with(kData)) return false;
  const std::size_t begin = at + jobs.size();
  if (folder.size() < begin + kData.size()) return false;
  const std::string job = folder.substr(begin, folder.size() - kData.size() - begin);
  const std::size_t dash = std::min(job.find('-'), job.size());  // JOB, or JOB-RESTART
  return is_number(job.substr(0, dash)) && (dash == job.size() || is_number(job.substr(dash + 1)));
}

bool is_record_folder(const std::string& folder, const std::string& records, uid_t uid) {
  const std::string of_user = records + "/" + std::to_string(uid) + "/";
  const std::size_t dot = folder.find('.', of_user.size());
  return folder.starts_with(of_user) && dot != std::string::npos &&
         is_number(folder.substr(of_user.size(), dot - of_user.size()));
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

namespace {

std::vector<int> without(const std::vector<int>& cpus, const std::vector<int>& excluded) {
  std::vector<int> rest;
  std::copy_if(cpus.begin(), cpus.end(), std::back_inserter(rest),
               [&](int cpu) { return std::find(excluded.begin(), excluded.end(), cpu) == excluded.end(); });
  return rest;
}

// Whether Slurm gives CPUs to this process's job or step. A line of `groups` is NUMBER:CONTROLLERS:PATH. Version 1 has a group
// for CPUs only where Slurm confines steps; version 2 has it in any case, without CPUs in it where Slurm does not.
bool has_cpus_from_slurm(const std::string& groups, const std::string& root) {
  std::ifstream lines(groups);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string_view> fields = split(line, ':');
    if (fields.size() != 3) continue;
    std::string path(fields[2]);
    const std::vector<std::string_view> controllers = split(fields[1], ',');
    const bool version_1 = std::find(controllers.begin(), controllers.end(), "cpuset") != controllers.end();
    if (!version_1 && !fields[1].empty()) continue;
    for (; path.find("/job_") != std::string::npos; path.resize(path.rfind('/'))) {
      std::string cpus;
      std::ifstream file(root + path + "/cpuset.cpus");
      if (version_1 || (std::getline(file, cpus) && !cpus.empty())) return true;
    }
  }
  return false;
}

}  // namespace

std::vector<int> step_cpus(std::uint32_t granted, const std::string& groups, const std::string& root) {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  std::vector<int> possible;
  try {
    const std::vector<int> bound = cpus_of_this_thread();
    std::vector<int> all(kMaxCpus);
    std::iota(all.begin(), all.end(), 0);
    bind_this_thread(all);  // the kernel reduces it to the CPUs of the control group
    possible = cpus_of_this_thread();
    bind_this_thread(bound);
  } catch (const Error&) {
    return {};
  }
  const bool known = static_cast<long>(possible.size()) < online || static_cast<long>(granted) >= online ||
                     has_cpus_from_slurm(groups, root);
  return known ? possible : std::vector<int>{};
}

std::vector<int> spare_cpus(const std::vector<int>& step, const std::vector<int>& of_tasks,
                            const std::vector<int>& computing) {
  for (const auto& taken : {of_tasks, computing}) {
    std::vector<int> free = without(step, taken);
    if (!free.empty()) return free;
  }
  return step;
}

StepLease StepLease::take(const std::string& store, const std::string& name) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  Folder held = Folder::open_path(store).own("leases", uid, gid, 0700).own("held", uid, gid, 0700);
  UniqueFd fd = held.lock_shared(name);
  return {std::move(held), name, std::move(fd)};
}

void StepLease::remove_name() const {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 && folder_.is_name_of(name_, fd_.get())) {
    ::unlinkat(folder_.fd(), name_.c_str(), 0);
  }
}

}  // namespace lockstep::spank
