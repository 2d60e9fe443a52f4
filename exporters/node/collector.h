// Answers Prometheus: reads the records again for each scrape and turns them into a page of metrics. On any
// error it still answers, and counts the error.
//
// Threads: page() may be called from any thread; calls take turns.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "exporters/node/cache_usage.h"
#include "exporters/node/families.h"
#include "exporters/node/scanner.h"
#include "exporters/node/user_names.h"

namespace lockstep::exporter {

struct CollectorOptions {
  std::filesystem::path records;
  std::filesystem::path cache;  ///< empty: no cache
  std::string node;             ///< the node label
  ScanLimits limits;
  std::function<void(const std::string&)> say = {};  ///< takes one line about each new error; may be empty
};

class Collector {
 public:
  explicit Collector(CollectorOptions options);

  /// The page of metrics now. Never throws.
  std::string page() noexcept;

 private:
  CollectorOptions options_;
  std::mutex mutex_;
  Scanner scanner_;
  CacheUsageMeter cache_;
  UserNames names_;
  OwnCounts own_;
};

}  // namespace lockstep::exporter
