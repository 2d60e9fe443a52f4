#include <unistd.h>

#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "common/leaf/text.h"
#include "common/tool.h"
#include "plugin/doctor/checks.h"

namespace lockstep::doctor {
namespace {

constexpr const char* kWithoutPlugin = "Jobs cannot use --stage, --pin and --metrics.";

struct PluginVersion {
  std::string own;
  unsigned slurm_number = 0;  // 0x160508 for 22.05.8
  std::string slurm() const {
    return fmt::format("{}.{:02}", slurm_number >> 16U, (slurm_number >> 8U) & 0xffU);
  }
};

// The plugin exports only Slurm's symbols; its file contains its version as text (plugin/spank/spank.cpp).
std::optional<PluginVersion> version_in(const std::filesystem::path& plugin) {
  // "lockstep.so version 0.1.0 0x160508"
  std::istringstream words(text_in(plugin, "lockstep[.]so version [0-9.]+ 0x[0-9a-f]+"));
  PluginVersion version;
  std::string slurm;
  if (!(words >> slurm >> slurm >> version.own >> std::hex >> version.slurm_number)) return std::nullopt;
  return version;
}

// "slurm-wlm 22.05.8" -> "22.05"; "" if srun does not say it.
std::string slurm_version() {
  const std::string text = run_quickly({"srun", "--version"}).output;
  std::smatch match;
  return std::regex_search(text, match, std::regex(" ([0-9]+[.][0-9]+)")) ? match[1].str() : "";
}

std::string first_line(const std::string& text) {
  constexpr std::size_t kMaxBytes = 200;
  return printable(text.substr(0, text.find('\n')), kMaxBytes);
}

bool same_versions(const PluginLine& line, Report& report) {
  const auto version = version_in(line.plugin);
  if (!version || version->own != lockstep::version()) {
    report.error("plugin",
                 fmt::format("{} has version {}, and lockstep-doctor has {}", line.plugin.string(),
                             version ? version->own : "unknown", lockstep::version()),
                 "The plugin and its helpers exchange messages that only the same version understands.",
                 "install the plugin and the tools from the same build or packages");
    return false;
  }
  const std::string slurm = slurm_version();
  if (slurm.empty() || slurm == version->slurm()) return true;
  report.error("plugin",
               fmt::format("{} is built for Slurm {}, and this is Slurm {}", line.plugin.string(),
                           version->slurm(), slurm),
               "Slurm does not load a plugin for another major.minor version.",
               fmt::format("build the plugin with the headers of Slurm {}", slurm));
  return false;
}

// The packages install the line in a file of its own: then only the include is missing, which is a mistake. Elsewhere the
// site may not want the plugin on this machine.
void report_missing_line(const std::filesystem::path& plugstack, Report& report) {
  if (const auto line = find_line_not_included(plugstack)) {
    return report.error(
        "plugin", fmt::format("{} does not include {}", plugstack.string(), line->file.string()),
        kWithoutPlugin,
        fmt::format("echo 'include {}/*.conf' >>{}", parent_of(line->file).string(), plugstack.string()));
  }
  const std::string plugin = installed_file("lib/lockstep/lockstep.so");
  report.warning(
      "plugin", fmt::format("{} has no line for lockstep.so", plugstack.string()), kWithoutPlugin,
      fmt::format("on all nodes and login nodes: echo 'optional {} conf=/etc/lockstep/lockstep.conf' >>{}",
                  plugin.empty() ? "PREFIX/lib/lockstep/lockstep.so" : plugin, plugstack.string()));
}

void check_helper(const std::filesystem::path& helper, Report& report) {
  const ProcessResult result = run_quickly({helper, "--version"});
  const std::string wanted = fmt::format("{} {}\n", helper.filename().string(), version());
  if (result.exit_code == 0 && result.output == wanted) {
    return report.ok("helpers", fmt::format("{} has version {}", helper.string(), version()));
  }
  const std::string why =
      "The plugin runs this program on every node; without it, steps with its option end or run unpinned.";
  if (::access(helper.c_str(), X_OK) != 0) {
    return report.error("helpers", fmt::format("cannot run {}: {}", helper.string(), errno_text(errno)), why,
                        "set 'helpers' in lockstep.conf to the folder of the tools, or install them there");
  }
  report.error("helpers",
               fmt::format("{} is not {}: {}", helper.string(), wanted.substr(0, wanted.size() - 1),
                           first_line(result.output.empty() ? result.error : result.output)),
               why, "install the plugin and the tools from the same build or packages");
}

// Slurm's configuration as slurmctld has it; empty if it does not answer.
using Settings = std::map<std::string, std::string>;

Settings slurm_settings() {
  Settings settings;
  // "AuthType                = auth/munge"
  std::istringstream lines(run_quickly({"scontrol", "show", "config"}).output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string key, equals, value;
    if (words >> key >> equals && equals == "=" && std::getline(words >> std::ws, value))
      settings[key] = value;
  }
  return settings;
}

std::string value_of(const Settings& settings, const std::string& key) {
  const auto found = settings.find(key);
  return found == settings.end() ? "" : found->second;
}

void check_munge(const std::string& auth_type, Report& report) {
  const bool needed = auth_type.empty() || auth_type == "auth/munge";
  const bool missing = run_quickly({"munge", "--version"}).exit_code == 127;
  if (missing && needed) return report.ok("munge", "munge is not installed");
  const ProcessResult munge = run_quickly({"sh", "-c", "munge -n | unmunge"});
  if (munge.exit_code == 0) return report.ok("munge", "munge makes and reads a credential");
  if (!needed) {
    return report.ok(
        "munge",
        fmt::format("Slurm uses {}, and munge does not run: the nodes of a step trust all who have its key",
                    auth_type));
  }
  report.error("munge", fmt::format("munge does not work: {}", first_line(munge.error)),
               "Slurm trusts no message of this node, and staging nodes do not trust each other.",
               "systemctl restart munge; journalctl -u munge");
}

// The folders that job_container/tmpfs makes for each job: Dirs in job_container.conf, which may be on slurmctld's machine
// only.
std::vector<std::string> private_folders() {
  std::string folders = "/tmp,/dev/shm";
  std::ifstream lines(parent_of(plugstack_file()) / "job_container.conf");
  std::smatch found;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_search(line, found, std::regex("^[^#]*\\bDirs=([^ ]+)", std::regex::icase)))
      folders = found[1];
  }
  std::vector<std::string> list;
  for (const std::string_view folder : split(folders, ',')) list.emplace_back(folder);
  return list;
}

void check_private_folders(const Config& config, Report& report) {
  std::vector<std::pair<const char*, std::string>> used{
      {"cache", config.cache}, {"records", config.records}, {"links", config.links}};
  if (config.ram > 0) used.emplace_back("ram_cache", config.ram_cache);
  for (const auto& [key, folder] : used) {
    for (const std::string& own : private_folders()) {
      if (folder != own && !folder.starts_with(own + "/")) continue;
      report.error(
          "slurm-settings",
          fmt::format("{} {} is below {}, which job_container/tmpfs makes for each job", key, folder, own),
          "Jobs do not see the node's folder, and what they stage or record is gone at their end.",
          fmt::format(
              "name another folder with '{}' in lockstep.conf, or leave {} out of Dirs in job_container.conf",
              key, own));
    }
  }
}

void check_settings(const Settings& settings, const std::optional<Config>& config, Report& report) {
  const std::size_t before = report.findings().size();
  if (config && value_of(settings, "JobContainerType") == "job_container/tmpfs") {
    check_private_folders(*config, report);
  }
  if (value_of(settings, "TaskPlugin").find("task/cgroup") == std::string::npos ||
      value_of(settings, "ConstrainCores") != "yes") {
    report.warning(
        "slurm-settings", "Slurm does not confine jobs to their CPUs",
        "Staging in the background takes the CPUs of tasks, and jobs may use those of others.",
        "TaskPlugin=task/cgroup,task/affinity in slurm.conf, and ConstrainCores=yes in cgroup.conf");
  }
  if (value_of(settings, "PrologFlags").find("RunInJob") != std::string::npos) {
    report.warning(
        "slurm-settings", "PrologFlags has RunInJob: Slurm then does not call plugins at a job's end",
        "Folders of ended jobs stay until lockstep-gc removes them after a day, and records until the next boot.",
        "leave RunInJob out of PrologFlags in slurm.conf, or clean up by an epilog (docs: plugin)");
  }
  if (report.findings().size() == before)
    report.ok("slurm-settings", "Slurm's configuration suits the plugin");
  const std::string parameters =
      value_of(settings, "SlurmctldParameters") + "," + value_of(settings, "SchedulerParameters");
  if (parameters.find("enable_expedited_requeue") != std::string::npos) {
    report.ok("expedited-requeue", "jobs may use sbatch --requeue=expedite");
  } else if (slurm_version() >= "25.11") {
    report.ok("expedited-requeue",
              "slurm.conf does not have enable_expedited_requeue, so jobs cannot use --requeue=expedite");
  }
}

}  // namespace

bool check_slurm(Report& report) {
  if (run_quickly({"srun", "--version"}).exit_code != 127) return true;
  report.ok("slurm", "Slurm is not installed, so its checks are left out");
  return false;
}

bool is_compute_node() {
  // Prints the names of this machine's nodes, from slurm.conf.
  const ProcessResult nodes = run_quickly({"scontrol", "show", "aliases"});
  return nodes.exit_code != 0 || nodes.output.find_first_not_of(" \n") != std::string::npos;
}

void check_plugin(const std::optional<PluginLine>& line, const std::string& option_prefix, Report& report) {
  if (!line) return report_missing_line(plugstack_file(), report);
  // Slurm looks for a relative path in its own folder of plugins.
  if (line->plugin.is_absolute()) {
    if (::access(line->plugin.c_str(), R_OK) != 0) {
      return report.error(
          "plugin",
          fmt::format("{} names {}: {}", line->file.string(), line->plugin.string(), errno_text(errno)),
          kWithoutPlugin, "install lockstep.so there, or correct the line");
    }
    if (!same_versions(*line, report)) return;
  }
  const std::string option = fmt::format("--{}stage=", option_prefix);
  if (run_quickly({"srun", "--help"}).output.find(option) == std::string::npos) {
    return report.error(
        "plugin", fmt::format("srun does not show the option {}", option), kWithoutPlugin,
        "srun -vv true 2>&1 | grep -i -e spank -e plugin  # shows why Slurm does not load it");
  }
  report.ok("plugin", fmt::format("{} {} is loaded", line->plugin.string(), version()));
}

void check_helpers(const Config& config, Report& report) {
  for (const char* const name : {"lockstep-stage", "lockstep-pin"}) {
    check_helper(std::filesystem::path(config.helpers) / name, report);
  }
}

void check_pmix(Report& report) {
  // The ranks of torchrun need no PMIx.
  if (environment::get("TORCHELASTIC_RUN_ID") || environment::get("LOCAL_WORLD_SIZE")) return;
  const std::string why = "Without it each rank of an MPI program finds itself alone, and trains alone.";
  const bool in_step =
      environment::get("SLURM_STEP_TASKS_PER_NODE") && !environment::get("OMPI_COMM_WORLD_RANK");
  if (in_step && (environment::get("PMIX_NAMESPACE") || environment::get("PMI_RANK"))) {
    return report.ok("pmix", "srun's tasks can find each other");
  }
  if (run_quickly({"srun", "--mpi=list"}).output.find("pmix") != std::string::npos) {
    if (!in_step) return report.ok("pmix", "srun offers PMIx");
    return report.warning("pmix", "this srun started its tasks without PMIx", why,
                          "for programs that use MPI: srun --mpi=pmix, or MpiDefault=pmix in slurm.conf");
  }
  const std::string what = "srun --mpi=list does not show pmix";
  const std::string remedy = "install Slurm's plugin mpi_pmix (Debian: slurm-wlm-basic-plugins)";
  if (in_step) return report.error("pmix", what, why, remedy);
  report.warning("pmix", what, why, remedy);
}

void check_slurmctld(const std::optional<Config>& config, Report& report) {
  const ProcessResult ping = run_quickly({"scontrol", "ping"});
  const Settings settings = slurm_settings();
  check_munge(value_of(settings, "AuthType"), report);
  if (ping.output.find(" UP") == std::string::npos) {
    return report.error(
        "slurmctld",
        fmt::format("slurmctld does not answer: {}",
                    first_line(ping.output.empty() ? ping.error : ping.output)),
        "It is down, out of reach, or has another key, so no job can start here.",
        "systemctl status slurmctld on its machine; compare md5sum /etc/munge/munge.key (or slurm.key) there and here");
  }
  report.ok("slurmctld", "slurmctld answers");
  if (!settings.empty()) check_settings(settings, config, report);
}

}  // namespace lockstep::doctor
