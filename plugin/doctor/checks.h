// The checks of lockstep-doctor, and what they have found on a node. Each check adds its findings to the report under the ids
// that its comment names; docs/admins/doctor.md has the table of all ids.
//
// Threads: values are one thread's; run_quickly() is safe from any. The checks: main's thread, as long as no other one changes
// the environment. They run other programs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "common/leaf/options/config.h"
#include "common/process.h"
#include "plugin/affinity/plan.h"

namespace lockstep::doctor {

enum class Level {
  ok,
  warning,  ///< something is missing or slower than it could be
  error     ///< training would fail, hang or be much slower
};

struct Finding {
  std::string id;  ///< of the check; several findings may have the same
  Level level;
  std::string what;
  std::string why;     ///< why it matters; "" at Level::ok
  std::string remedy;  ///< the command or the setting that mends it; "" at Level::ok
};

/// The findings of one node.
class Report {
 public:
  void ok(std::string id, std::string what);
  void warning(std::string id, std::string what, std::string why, std::string remedy);
  void error(std::string id, std::string what, std::string why, std::string remedy);

  const std::vector<Finding>& findings() const { return findings_; }
  /// True if a finding is an error.
  bool failed() const;

  /// Of libraries that an earlier check found: "LibTorch" -> "1.13".
  std::map<std::string, std::string> versions;

 private:
  std::vector<Finding> findings_;
};

/// {"node": NAME, "findings": [{"id", "level", "what", "why", "do"}]}.
nlohmann::json to_json(const std::string& node, const Report& report);

/// Lines for people: errors, then warnings, then the number of checks that passed or, with `verbose`, a line for each
/// of them.
std::string to_text(const std::string& node, const Report& report, bool verbose);

// The checks' common tools: find the plugin's configuration, and run the node's programs (configuration.cpp).

/// The line of plugstack.conf that names the plugin.
struct PluginLine {
  std::filesystem::path file;    ///< where the line is
  std::filesystem::path plugin;  ///< lockstep.so, as written
  std::string config;            ///< of conf=, or the default
  int number = 0;                ///< of the line in `file`
  std::string place() const { return file.string() + ":" + std::to_string(number); }
};

/// The file plugstack.conf of this node's Slurm, or where it would be.
std::filesystem::path plugstack_file();

/// The plugin's line in a plugstack.conf or in the files that it includes; nullopt if there is none.
std::optional<PluginLine> find_plugin_line(const std::filesystem::path& plugstack);

/// A file beside `plugstack`, in plugstack.conf.d, that has the plugin's line; nullopt if there is none. The packages
/// install one, which has no effect until plugstack.conf includes it.
std::optional<PluginLine> find_line_not_included(const std::filesystem::path& plugstack);

/// Reads the lockstep.conf that `path` or the plugin's line names, or the one at the default path, for the partition of this
/// job. nullopt if it has a mistake, which `report` then says, or if nothing names it and it does not exist.
std::optional<Config> read_configuration(const std::string& path, const std::optional<PluginLine>& line,
                                         Report& report);

/// A file of this installation, such as "share/lockstep/lockstep.conf", as an absolute path; "" if it does not exist.
std::string installed_file(const std::string& name);

/// Runs a program and ends it after 5 seconds: then its exit code is 124, and 127 if there is no such
/// program.
ProcessResult run_quickly(std::vector<std::string> command);

/// The first text in a file, also in a binary one, that matches an extended regular expression; "" if there is none.
std::string text_in(const std::filesystem::path& file, const std::string& expression);

// What Slurm and munge do for jobs on this node (slurm.cpp).

/// "slurm": returns false if this machine does not have it, so that the other checks of Slurm do not apply.
bool check_slurm(Report& report);

/// False if slurm.conf knows no node with this machine's name, as on a login node. True if Slurm cannot tell.
bool is_compute_node();

/// "plugin": plugstack.conf has the plugin's line, the file is there, has this version and loads.
void check_plugin(const std::optional<PluginLine>& line, const std::string& option_prefix, Report& report);

/// "helpers": lockstep-stage and lockstep-pin are in the folder that lockstep.conf names, in this version.
void check_helpers(const Config& config, Report& report);

/// "pmix": in a step, srun's tasks can find each other; elsewhere, srun offers PMIx. Skipped for the ranks of torchrun.
void check_pmix(Report& report);

/// "slurmctld": it answers and accepts this node's credentials. "munge": the daemon answers, if Slurm needs it.
/// "slurm-settings": nothing in Slurm's configuration keeps the plugin from working. `config`: of the plugin, if known.
void check_slurmctld(const std::optional<Config>& config, Report& report);

// The node's group, folders and file systems (files.cpp).

/// "group": the exporter's group exists.
void check_group(const Config& config, Report& report);

/// "folders": those of lockstep.conf belong to root, nobody else may write to them, and no link leads to
/// them; a missing one is made by the plugin. Records and the RAM tier are on memory file systems.
void check_folders(const Config& config, Report& report);

/// "cache": it is on a local disk with enough space, and its limits fit that disk.
void check_cache(const Config& config, Report& report);

/// "shm": all users may write to /dev/shm, and it has enough space.
void check_shared_memory(const std::filesystem::path& folder, Report& report);

/// The file system of a path that exists, as the kernel names it ("ext4", "nfs4", "fuse.sshfs").
std::string file_system_type(const std::filesystem::path& path);

/// How a file system of this type can serve as a node's disk.
enum class Disk { local, unsure, memory, network };
Disk disk_of(const std::string& type);

// How fast the node reads a source and its own cache: whether staging helps, and where to (disks.cpp).

struct ReadSpeed {
  double bytes_per_second = 0;  ///< one reader, from begin to end
  double reads_per_second = 0;  ///< 4 KiB at random places, one after the other; 0 if the file is too small
  bool direct = true;           ///< false: the file system has no direct I/O, so memory may have helped
};

struct DiskFigures {
  std::string source, cache;
  ReadSpeed source_speed, cache_speed;
  std::uint64_t source_bytes = 0;
  std::uint64_t ram = 0;           ///< bytes of the RAM tier; 0: none
  std::optional<bool> rotational;  ///< of the cache's disk, if the kernel knows
};

/// "disks": what the figures mean for jobs that read this source.
void judge_disks(const DiskFigures& figures, Report& report);

/// Measures for about four seconds, with direct I/O where the file system has it, and judges. Writes up to 256 MiB into
/// the cache, in a file without a name, which the kernel removes when this process ends.
void check_disks(const std::filesystem::path& source, const Config& config, Report& report);

// The way from the ranks' records to Prometheus (monitoring.cpp).

/// "exporter": lockstep-exporter runs on this node, as far as this user can tell. Not checked without the exporter's
/// group. Login nodes need none.
void check_exporter(const Config& config, Report& report);

/// "prometheus": it answers at this address ("http://head:9090") and has this node's exporter, by the node's name or
/// one of its addresses, as a healthy target.
void check_prometheus(const std::string& url, const std::string& node, Report& report);

// The libraries that a training program loads. They are looked up as the loader does, but not loaded (libraries.cpp).

/// "program", "libtorch", "nccl" and "blas": of a program or library, or, if `program` is empty, of the system's
/// LibTorch. ldd looks for the libraries, so LD_LIBRARY_PATH counts.
void check_libraries(const std::filesystem::path& program, Report& report);

/// The version of a LibTorch: from its file's name, or from the files that a wheel or an archive has beside it; "" if
/// it has none.
std::string torch_version(const std::filesystem::path& library);

/// The version of an NCCL: from its file's name, or from its content; "" if it has none.
std::string nccl_version(const std::filesystem::path& library);

// The node's GPUs and their driver, as NVIDIA's management library (NVML) shows them (gpus.cpp).

/// "gpu": the node has GPUs, and the driver's library works. Then "gpu-persistence", "gpu-mig", "gpu-clocks",
/// "gpu-ecc" and "gpu-p2p", and "nccl": LibTorch, if an earlier check found one, has NCCL. `device` exists on a node with NVIDIA's driver.
void check_gpus(Report& report, const std::filesystem::path& device = "/dev/nvidiactl");

/// "gpu-network": each GPU has a network card at its socket. Nothing if the node has no GPU or no card.
void check_gpu_network(const affinity::Machine& machine, Report& report);

// The CPUs of a job's tasks on this node (tasks.cpp).

struct Task {
  int number = 0;   ///< on this node, 0…
  int on_node = 1;  ///< tasks on this node
};

/// This process's place among the tasks that srun, mpirun or torchrun started on the node; nullopt if none of
/// them did.
std::optional<Task> this_task();

/// "binding": a task has more than one core if the job has more for it. "threads": the tasks' OpenMP threads
/// fit on the CPUs. `option_prefix` begins the names of the plugin's options.
void check_cpus(const Task& task, const std::string& option_prefix, Report& report);

/// "peer_network": this node has an address in that network of lockstep.conf (monitoring.cpp).
void check_peer_network(const Config& config, Report& report);

}  // namespace lockstep::doctor
