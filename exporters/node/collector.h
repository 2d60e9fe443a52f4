// Answers Prometheus: reads the records again for each scrape and turns them into a page of metrics.
//
// Threads: page() may be called from any thread; calls take turns.
#pragma once

#include <filesystem>
#include <functional>
#include <mutex>
#include <string>

#include "exporters/node/background_answers.h"
#include "exporters/node/cache_usage.h"
#include "exporters/node/families.h"
#include "exporters/node/scanner.h"

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

  /// The page of metrics now. Throws if the records cannot be read: without them it would look as if no job ran. The next
  /// page counts the error.
  std::string page();

 private:
  std::string make();
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  CollectorOptions options_;
  std::mutex mutex_;
  Scanner scanner_;
  CacheUsageMeter cache_;
  BackgroundAnswers names_;
  OwnCounts own_;
  std::string cache_error_;
};

}  // namespace lockstep::exporter
