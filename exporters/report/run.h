// A run, read from its records: the record of every rank and the result of staging on every node.
//
// Threads: values; functions are safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "exporters/node/staging_record.h"
#include "exporters/record/snapshot.h"

namespace lockstep::report {

struct Run {
  std::vector<record::Snapshot> ranks;  ///< at least one, in the order of ranks
  std::vector<exporter::StagingRecord> staging;
  std::vector<std::string> notes;  ///< about records that were left out or are missing
};

/// Reads record files, and folders of records with the staging files beside them. If they belong to several
/// runs, keeps the latest run and adds a note. Throws Error naming the path if there is no record or one is
/// damaged.
Run load(const std::vector<std::filesystem::path>& paths);

// Figures of a rank, for comparison.
double milliseconds_per_step(const record::Snapshot& rank, std::uint64_t ns);
double step_milliseconds(const record::Snapshot& rank);
double phase_milliseconds(const record::Snapshot& rank, record::Phase phase);
/// The step without exposed communication, because that is where a rank waits for others.
double own_milliseconds(const record::Snapshot& rank);
double tokens_per_second(const record::Snapshot& rank);

/// Of the whole run: the tokens of all ranks divided by the time of the rank that took longest.
double tokens_per_second(const Run& run);

double median(std::vector<double> values);

}  // namespace lockstep::report
