// A run as its records tell it: every rank's record and what staging did on every node.
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
  std::vector<record::Snapshot> ranks;  ///< at least one, by rank
  std::vector<exporter::StagingRecord> staging;
  std::vector<std::string> notes;  ///< what was left out, and why
};

/// Reads records (files) and folders of records with the staging files beside them. Where they are of several
/// runs, the latest one is taken and a note says so. Throws Error naming the path where there is no record,
/// or one is damaged.
Run load(const std::vector<std::filesystem::path>& paths);

// What a rank did, as people compare it.
double milliseconds_per_step(const record::Snapshot& rank, std::uint64_t ns);
double step_milliseconds(const record::Snapshot& rank);
double phase_milliseconds(const record::Snapshot& rank, record::Phase phase);
/// The step without exposed communication, in which a rank waits for others.
double own_milliseconds(const record::Snapshot& rank);
double tokens_per_second(const record::Snapshot& rank);

/// Of the whole run: all ranks' tokens by the time of the rank that took longest.
double tokens_per_second(const Run& run);

/// Own time of one of the last steps, in nanoseconds.
std::uint64_t own_ns(const record::Step& step);

double median(std::vector<double> values);

}  // namespace lockstep::report
