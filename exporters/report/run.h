// A run, read from its records: the record of every rank and the result of staging on every node.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exporters/node/staging_record.h"
#include "exporters/record/snapshot.h"
#include "exporters/report/profile.h"
#include "exporters/report/restarts.h"

namespace lockstep::report {

struct Run {
  std::vector<record::Snapshot> ranks;  ///< at least one, in the order of ranks
  std::vector<exporter::StagingRecord> staging;
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

// Figures of a rank, for comparison.
double milliseconds_per_step(const record::Snapshot& rank, std::uint64_t ns);
double step_milliseconds(const record::Snapshot& rank);
double phase_milliseconds(const record::Snapshot& rank, record::Phase phase);
/// The step without exposed communication, because that is where a rank waits for others.
double own_milliseconds(const record::Snapshot& rank);
double tokens_per_second(const record::Snapshot& rank);

/// Of the whole run: the tokens of all ranks divided by the time of the rank that took longest.
double tokens_per_second(const Run& run);

}  // namespace lockstep::report
