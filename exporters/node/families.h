// The page of metrics that the exporter serves: those of the records (exporters/families), of staging, of the node's
// cache, and of the exporter itself.
//
// A job's staged data is counted once on a node, although each of its steps stages it: the first step copies it, and the
// others find it in the cache. So these series have no step_id, except the state.
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

/// The page of metrics. The scan has the users' names already.
std::string make_page(const ScanResult& scan, const std::string& node, const CacheUsage& cache,
                      const OwnCounts& own);

}  // namespace lockstep::exporter
