// Finds the records of the jobs on this node and keeps them for a while after their ranks are gone.
//
// The root holds UID/JOB.STEP/rank-*.record, made by the plugin (or JOB.STEP/… directly, a single user's
// runtime folder). Whose job it is follows from the folders, which root made, never from what a record
// claims. Users own what is inside, so every name is opened without following links, and numbers and sizes
// are bounded: a broken or hostile file costs its own series and one error count, nothing else.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "exporters/node/staging_record.h"
#include "exporters/record/snapshot.h"

namespace lockstep::exporter {

struct ScanLimits {
  std::chrono::seconds hold{60};      ///< how long a rank's last values are served after its end
  std::size_t files = 4096;           ///< records served at most
  std::size_t files_per_user = 1024;  ///< of one user
};

/// A rank's record as it is served. Its last steps are not kept: with a thousand ranks they would be most of
/// the memory.
struct RankRecord {
  record::Snapshot snapshot;
  double own_seconds = 0;  ///< per step, over the last steps; 0 where there is none yet
};

/// The time a rank worked itself in its last steps, in seconds a step: the step without exposed
/// communication, which is where a rank waits for others. 0 where there is no step yet.
double own_seconds(const std::vector<record::Step>& steps);

/// A job step's ranks on this node; none while it is staging, or where its program writes no records.
struct JobRecords {
  std::string user;  ///< numeric; empty where the root has no folders of users
  std::string job;
  std::string step;
  std::vector<RankRecord> ranks;  ///< by rank, each rank once
  std::optional<StagingRecord> staging;
};

struct ScanResult {
  std::vector<JobRecords> jobs;
  std::size_t dropped_files = 0;  ///< over a limit
  std::size_t record_errors = 0;
  std::size_t staging_errors = 0;
};

class Scanner {
 public:
  Scanner(std::filesystem::path root, ScanLimits limits) : root_(std::move(root)), limits_(limits) {}

  /// Everything there is to serve now. A root that does not exist is a node without jobs.
  ScanResult scan(std::int64_t now_unix_ns);

 private:
  struct Seen {
    bool alive = false;
    std::int64_t ended_unix_ns = 0;
    std::int64_t start_unix_ns = 0;
    std::uint64_t scan = 0;  // the last scan that saw it
  };
  struct User;

  void scan_user(int folder, const std::string& user, ScanResult& result);
  void scan_job(int folder, User& user, const std::string& name, ScanResult& result);
  bool staging_is_served(int folder, const JobRecords& job) const;
  bool held(const std::string& key, const record::Snapshot& snapshot);

  std::filesystem::path root_;
  ScanLimits limits_;
  std::map<std::string, Seen> seen_;
  std::uint64_t scans_ = 0;
  std::int64_t now_ = 0;
  std::size_t served_ = 0;
};

}  // namespace lockstep::exporter
