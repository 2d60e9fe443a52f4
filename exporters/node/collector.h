// Answers Prometheus: reads the records again for each scrape, and makes a page of metrics of them (exporters/families), of
// staging, of the node's cache, and of the exporter itself.
//
// Threads: page() may be called from any thread; calls take turns. A Scanner: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "common/leaf/unique_fd.h"
#include "exporters/families/rank_families.h"
#include "exporters/node/node_families.h"
#include "exporters/node/slow_services.h"

namespace lockstep::exporter {

struct ScanLimits {
  std::chrono::seconds hold{60};  ///< how long the last values are served after a job step's last rank ended
  std::size_t files = 4096;       ///< maximum number of records served
  std::size_t files_per_user = 1024;  ///< the same for one user
};

struct ScanResult {
  std::vector<JobRecords> jobs;  ///< each with ranks
  std::vector<StepStaging> staging;
  std::size_t dropped_files = 0;  ///< because of a limit
  std::size_t record_errors = 0;
  std::size_t staging_errors = 0;
  std::vector<std::string>
      new_errors;  ///< one line for each job step in which this scan found the first error
};

/// Finds the records of the jobs on this node and serves them for a while after their ranks have ended.
///
/// The records folder holds UID/JOB.STEP/rank-*.record, made by the plugin, or JOB.STEP/… directly if it is a single
/// user's runtime folder. The owner of a job follows from the folders, which root made, never from a record's content.
/// Users own the files inside, so the scanner follows no links and bounds numbers and sizes: a broken or hostile file
/// loses its own series and is counted as one error. While it exists, it holds a shared lock (flock) on the records
/// folder. If the lock is missing, the plugin tells users that their step times will not be in Prometheus.
class Scanner {
 public:
  Scanner(std::filesystem::path root, ScanLimits limits);

  /// Everything to serve now. If the records folder does not exist, the node has no jobs.
  ScanResult scan(std::int64_t now_unix_ns);

 private:
  struct Seen {
    bool alive = false;
    std::int64_t ended_unix_ns = 0;
    std::int64_t start_unix_ns = 0;
    std::uint64_t scan = 0;  // the last scan that saw it
  };
  struct User;

  void lock_root();
  void scan_user(int folder, const std::string& user, ScanResult& result);
  void scan_job(int folder, User& user, const std::string& name, ScanResult& result);
  bool has_room(const User& user) const;
  void count(User& user);
  void serve_ended(std::vector<record::Snapshot> ended, User& user, JobRecords& job);
  bool staging_is_served(int folder, const JobRecords& job) const;
  bool is_still_served(const std::string& key, const record::Snapshot& snapshot);
  void report_once(const std::string& job_folder, const std::string& what, ScanResult& result);

  std::filesystem::path root_;
  ScanLimits limits_;
  UniqueFd lock_;
  std::map<std::string, Seen> seen_;
  std::map<std::string, std::uint64_t>
      broken_;  // job steps with errors, and the last scan that saw their folder
  std::uint64_t scans_ = 0;
  std::int64_t now_ = 0;
  std::size_t served_ = 0;
};

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
  void add_own(std::size_t ranks, FamilyStream& stream) const;
  void say(const std::string& line) const {
    if (options_.say) options_.say(line);
  }

  CollectorOptions options_;
  std::mutex mutex_;
  Scanner scanner_;
  CacheUsageMeter cache_;
  BackgroundAnswers names_;
  std::string cache_error_;
  // Since the start.
  std::uint64_t dropped_series_ = 0;
  std::uint64_t record_errors_ = 0;
  std::uint64_t staging_errors_ = 0;
  std::uint64_t scrape_errors_ = 0;
  double scrape_seconds_ = 0;  // of this scrape, without sending the answer
};

}  // namespace lockstep::exporter
