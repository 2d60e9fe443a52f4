// Turns records into metrics: names, help, labels and units of everything that the exporter serves.
//
// The labels of a rank's series are job_id, step_id, node and rank, and at most `phase` or `origin` besides. A node's
// series of a job may have `late_rank`, the rank that was waited for. Texts that a user chooses appear only in
// lockstep_job_info. Histograms are classic ones, because Prometheus' text format has no native ones. To keep the
// number of series small, each rank has one histogram, of its steps; the phases' histograms cover all ranks of a job
// step on the node.
//
// Threads: functions without shared state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "exporters/node/cache_usage.h"
#include "exporters/node/scanner.h"

namespace lockstep::exporter {

/// Metrics of the exporter itself; counts since it started.
struct OwnCounts {
  std::uint64_t dropped_series = 0;
  std::uint64_t record_errors = 0;
  std::uint64_t staging_errors = 0;
  std::uint64_t cache_errors = 0;
  std::uint64_t scrape_errors = 0;
  double scrape_seconds = 0;  ///< of this scrape, without sending the answer
};

/// The maximum number of series of one rank: what a dropped record costs.
std::size_t series_per_rank();

/// The page of metrics. `jobs` and `cache` have the users' names already.
std::string make_page(const std::vector<JobRecords>& jobs, const std::string& node, const CacheUsage& cache,
                      const OwnCounts& own);

}  // namespace lockstep::exporter
