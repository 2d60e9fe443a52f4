// A run, read from its records: the record of every rank and the result of staging on every node.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exporters/record/snapshot.h"
#include "exporters/report/profile.h"
#include "exporters/report/restarts.h"
#include "exporters/staging_record.h"

namespace lockstep::report {

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

}  // namespace lockstep::report
