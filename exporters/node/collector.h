// Answers Prometheus: reads the records again for each scrape and makes a page of metrics of them (exporters/families), of
// staging, of the node's cache, and of the exporter itself.
//
// A job's staged data is counted once on a node, although each of its steps stages it: the first step copies it, and the
// others find it in the cache. So these series have no step_id, except the state.
//
// Threads: page() may be called from any thread; calls take turns.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "exporters/node/background_answers.h"
#include "exporters/node/scanner.h"

namespace lockstep::exporter {

/// A user's store.
struct CacheUser {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t objects = 0;
};

/// How full the node's cache is, and which users fill it. Only root may look into users' stores: `lockstep-stage gc`, which
/// runs every few minutes, writes what it measured to <cache>/usage.json, which everyone may read.
struct CacheUsage {
  std::optional<std::uint64_t> bytes;         ///< on disk, of all stores; nullopt if it has not been measured
  std::optional<std::uint64_t> shared_bytes;  ///< of them in the shared store
  std::optional<std::uint64_t> written;       ///< when they were measured, in seconds since 1970
  std::optional<std::uint64_t> file_system_bytes;  ///< size of the file system that holds the cache
  std::optional<std::uint64_t> available_bytes;    ///< free for users on that file system
  std::vector<CacheUser> users;
};

/// One thread at a time.
class CacheUsageMeter {
 public:
  CacheUsageMeter(std::filesystem::path cache, std::chrono::seconds keep)
      : cache_(std::move(cache)), keep_(keep) {}

  /// The usage, looked up at most `keep` ago. Without values if the cache does not exist yet or the path is empty, and
  /// without those of usage.json if that does not exist yet.
  const CacheUsage& usage(std::chrono::steady_clock::time_point now);

  /// Look-ups until now that failed, and why the last one did; empty if it did not. Each look-up counts once, however often
  /// its result is used.
  std::uint64_t errors() const { return errors_; }
  const std::string& error() const { return error_; }

 private:
  std::filesystem::path cache_;
  std::chrono::seconds keep_;
  std::optional<std::chrono::steady_clock::time_point> looked_up_;
  CacheUsage usage_;
  std::uint64_t errors_ = 0;
  std::string error_;
};

struct CollectorOptions {
  std::filesystem::path records;
  std::filesystem::path cache;  ///< empty: no cache
  std::string node;             ///< the node label
  ScanLimits limits;
  std::function<void(const std::string&)> say = {};  ///< takes one line about each new error; may be empty
};

/// Metrics of the exporter itself; counts since it started.
struct OwnCounts {
  std::uint64_t dropped_series = 0;
  std::uint64_t record_errors = 0;
  std::uint64_t staging_errors = 0;
  std::uint64_t cache_errors = 0;
  std::uint64_t scrape_errors = 0;
  double scrape_seconds = 0;  ///< of this scrape, without sending the answer
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
