// Answers Prometheus: reads the records again for each scrape and turns them into metrics. On any error it
// still answers, because an exception here would end the process, and counts the error.
//
// Threads: Collect() may be called from any thread; calls take turns.
#pragma once

#include <prometheus/collectable.h>

#include <filesystem>
#include <mutex>
#include <string>
#include <vector>

#include "exporters/node/cache_usage.h"
#include "exporters/node/families.h"
#include "exporters/node/scanner.h"

namespace lockstep::exporter {

struct CollectorOptions {
  std::filesystem::path records;
  std::filesystem::path cache;  ///< empty: no cache
  std::string node;             ///< the node label
  ScanLimits limits;
};

class Collector : public prometheus::Collectable {
 public:
  explicit Collector(CollectorOptions options);

  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  CollectorOptions options_;
  mutable std::mutex mutex_;
  mutable Scanner scanner_;
  mutable CacheUsageMeter cache_;
  mutable OwnCounts own_;
};

}  // namespace lockstep::exporter
