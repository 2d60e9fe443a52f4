// A run, read from its records: the record of every rank, the result of staging on every node, and what else lies beside
// them. How its records are found.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "exporters/record/record.h"
#include "exporters/staging_record.h"

namespace lockstep::report {

/// The summary of a profile, which LOCKSTEP_PROFILE leaves as profile.json beside the records
/// (runtime/profile/profile_summary.h).
struct Profile {
  struct Operator {
    std::string name;
    double calls = 0;
    double total_ms = 0;  ///< with the operators that it called
    double self_ms = 0;
  };
  struct Module {
    std::string name;
    double forward_ms = 0;
    double backward_ms = 0;
    double forward_bytes = 0;  ///< of the results of its operators
    double backward_bytes = 0;
  };
  struct Fault {
    std::string name;  ///< of the operator
    double calls = 0;
    double bytes = 0;
  };

  struct Device {
    double computing_ms = 0;  ///< kernels but those of NCCL
    double tensor_cores_ms = 0;
    double communicating_ms = 0;
    double copying_ms = 0;
    double busy_ms = 0;
    std::vector<Operator> kernels{};  ///< and copies
  };

  std::int64_t written_unix_ns = 0;  ///< the file may be that of an earlier run
  int rank = 0;
  std::string node;
  double steps = 0;
  double step_ms = 0;  ///< this and all the following: per step
  std::vector<Operator> operators{};
  std::vector<Module> modules{};
  Device device{};  ///< no kernels: none were recorded
  Fault small{};    ///< operators below 10 µs; named after the one that is called most
  double small_ms = 0;
  std::vector<Fault> host_copies{};
  std::vector<Fault> device_waits{};
  std::vector<Fault> tuned_again{};  ///< convolutions, by cuDNN's autotuner
  std::vector<Fault> half_sums{};
  nlohmann::json json{};  ///< as in the file: totals
};

/// Throws Error naming the file if it is damaged. Texts are safe for a terminal.
Profile read_profile(const std::filesystem::path& file);

/// Tables of the operators and of the modules, each with a title line.
std::string profile_text(const Profile& profile);

/// One of the restarts of a job, from the lines that lockstep-run writes into the folder of the report.
struct Restart {
  std::string cause;
  double begin_unix = 0;  ///< of the new start
  // Not known if lockstep-run was lost too.
  std::optional<double> stop_seconds{};   ///< from the first sign of the failure to the end of the ranks
  std::optional<double> start_seconds{};  ///< from there to the new start
  // Known if the program has a lockstep::Checkpointer.
  std::optional<double> launch_seconds{};    ///< from there until the program began to load a checkpoint
  std::optional<double> load_seconds{};      ///< to load it
  std::optional<std::int64_t> loaded{};      ///< the steps that were done in this checkpoint
  std::optional<std::int64_t> steps_lost{};  ///< done before the failure, and not in the checkpoint
  std::vector<std::string> without{};        ///< nodes that the new start does not use
};

struct Restarts {
  double begin_unix = 0;  ///< of the first start
  std::vector<Restart> list{};

  double seconds() const;           ///< in which no rank ran, where they are known
  std::int64_t steps_lost() const;  ///< of all restarts, where they are known
};

/// Texts are safe for a terminal. Throws Error naming the file and the line if a line is damaged.
Restarts read_restarts(const std::filesystem::path& path);

/// What the last start tells of the whole job.
struct LastStart {
  double end_unix = 0;
  std::optional<double> goodput{};  ///< not known without phases of computing
  double step_seconds = 0;
};

/// The share of the time since the first start that trained, as if all starts had the goodput of the last one: without the
/// time in which no rank ran, and without steps that were lost. The last start's goodput without restarts, 0 where it is not known.
double job_goodput(const Restarts& restarts, const LastStart& last);

/// A line for all restarts, and one for each of the last ten. None without restarts. No share without a goodput.
std::vector<std::string> restart_lines(const Restarts& restarts, const LastStart& last);

/// A list of objects with the names of Restart's members; null where it is not known.
nlohmann::json restarts_json(const Restarts& restarts);

struct Run {
  std::vector<record::Snapshot> ranks;  ///< at least one, in the order of ranks
  std::vector<StagingRecord> staging;
  std::optional<Profile> profile;
  Restarts restarts{};             ///< of the job, under lockstep-run
  std::vector<std::string> notes;  ///< about records that were left out or are missing
  std::size_t unreadable = 0;  ///< files that were left out because they are damaged or of another version
};

/// Reads record files, and folders of records with the staging files and the profile beside them. Reads up to `last_steps` last
/// steps of each rank. If the records belong to several runs, keeps the latest run and adds a note. A damaged file
/// in a folder is left out and counted, with one note for all of them. Texts are safe for a terminal. Throws Error
/// naming the path if no record can be read, or if a path of a file is given and that file is damaged.
Run load(const std::vector<std::filesystem::path>& paths, std::size_t last_steps = record::kRingSteps);

/// In milliseconds whatever the length, as in the tables: a sentence with several times must not mix units.
std::string milliseconds(double ms);

/// null for nullopt.
template <typename Value>
nlohmann::json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

// Figures of a rank.
double milliseconds_per_step(const record::Snapshot& rank, std::uint64_t ns);
double step_milliseconds(const record::Snapshot& rank);
double phase_milliseconds(const record::Snapshot& rank, record::Phase phase);
/// The step without exposed communication, because that is where a rank waits for others.
double own_milliseconds(const record::Snapshot& rank);
double tokens_per_second(const record::Snapshot& rank);

/// Of the whole run: the tokens of all ranks divided by the time of the rank that took longest.
double tokens_per_second(const Run& run);

/// CPUs that the rank used on average since its start; 0 without a sample.
double cpus_used(const record::Snapshot& rank);

/// A step that all ranks have in their records: the entries of the ranks, in the order of Run::ranks.
using StepRow = std::vector<const record::Step*>;

/// All of them, without the first two steps of the job, which are slower, if more than eight remain. They point into `run`.
std::vector<StepRow> common_steps(const Run& run);

/// The ranks of a node that share a limit.
struct MemoryUse {
  std::string node{};
  std::vector<int> ranks{};
  std::uint64_t peak = 0;  ///< sum of the ranks' peaks, without files; memory that they share counts once
  std::uint64_t limit = 0;
  std::uint64_t buffers = 0;  ///< the maximum of the loaders' batches
  bool of_group = false;      ///< the limit is a cgroup's, not the node's
  bool died = false;          ///< one of them ended without finishing
  double share() const { return static_cast<double>(peak) / static_cast<double>(limit); }
};

/// The largest share first. Ranks without a sample, or without a limit, are left out.
std::vector<MemoryUse> memory_use(const Run& run);

/// "the 2 ranks on n1 use up to 3.1 GiB of the 10 GiB of the job's cgroup (31 %)".
std::string to_text(const MemoryUse& use);

/// Whether memory ended a rank, or is about to.
bool is_full(const MemoryUse& use);

/// The folders with records named by an argument of lockstep-report: the argument where such a path exists, else,
/// for a job number JOB or JOB.STEP, the first of these places that has it:
///
///   $LOCKSTEP_REPORT_DIR, ./report-JOB, ./report/JOB      copies that the ranks left
///   /run/lockstep/records/UID/JOB.STEP                    this node's records with the plugin
///   $XDG_RUNTIME_DIR/lockstep/records/JOB.STEP, /dev/shm/lockstep-UID/records/JOB.STEP   and without it
///
/// Without STEP all steps of the job in that place, from 0 to 999. Prefer::live looks for this node's records first.
/// Throws Error naming the places if none has it, or the folders that this user may not read.
enum class Prefer { copies, live };
std::vector<std::filesystem::path> find_records(const std::filesystem::path& argument,
                                                Prefer prefer = Prefer::copies);

}  // namespace lockstep::report
