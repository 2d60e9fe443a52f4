// The records of the ranks of a job step on this node, as they are served.
//
// Threads: values; the functions have no shared state.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "exporters/record/snapshot.h"

namespace lockstep::exporter {

/// A rank's record without its last steps: with a thousand ranks they would take most of the memory.
struct RankRecord {
  record::Snapshot snapshot;
  double own_seconds = 0;         ///< per step, over the last steps; 0 before the first step
  std::map<int, double> waits{};  ///< of the last steps: seconds per step by the rank that was waited for
};

/// The ranks of a job step on this node.
struct JobRecords {
  std::string user;         ///< user id; empty if the records folder has no folders of users
  std::string user_name{};  ///< empty if the user has none, or if it is not known yet
  std::string job;
  std::string step;
  std::vector<RankRecord> ranks;  ///< by rank, each rank once
};

/// Own time of a rank in its last steps, in seconds per step: the step without exposed communication, because
/// that is where a rank waits for others. 0 before the first step.
double own_seconds(const std::vector<record::Step>& steps);

/// The rank of "rank-000003.record"; nullopt for any other name.
std::optional<int> rank_of(std::string_view file);

/// Reads the record `file`, whose name is that of `rank`, in an open folder. Throws record::RecordError.
RankRecord read_rank_record(int folder, const std::string& file, int rank);

}  // namespace lockstep::exporter
