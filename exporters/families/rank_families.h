// The families of metrics that records give: names, help, labels and units.
//
// The labels of a rank's series are job_id, step_id, node and rank, and at most `phase` besides. Texts that a user
// chooses appear only in lockstep_job_info. Histograms are classic ones, because Prometheus' text format has no native
// ones. To keep the number of series small, each rank has one histogram, of its steps; the phases' histograms cover all
// ranks of a job step on the node.
//
// Threads: functions without shared state.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "exporters/families/family_stream.h"
#include "exporters/families/rank_record.h"

namespace lockstep::exporter {

/// The maximum number of series of one rank: what a dropped record costs.
std::size_t series_per_rank();

/// The labels job_id, step_id and node.
Labels labels_of(const std::string& job, const std::string& step, const std::string& node);

/// Streams the families of the ranks, and of the job steps with ranks, on the node.
void stream_rank_families(const std::vector<JobRecords>& jobs, const std::string& node, FamilyStream& stream);

}  // namespace lockstep::exporter
