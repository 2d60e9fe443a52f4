// The families of metrics of a node besides those of its ranks: staged data, and the node's cache.
//
// A job's staged data is counted once on a node, although each of its steps stages it: the first step copies it, and the
// others find it in the cache. So these series have no step_id, except the state.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "exporters/families/rank_families.h"
#include "exporters/staging_record.h"

namespace lockstep::exporter {

/// The result of staging for a job step on this node. A step has one while it is staging, before its first rank, and also
/// if its program writes no records.
struct StepStaging {
  std::string user;
  std::string job;
  std::string step;
  StagingRecord record;
};

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

void add_staging(const std::vector<StepStaging>& steps, const std::string& node, FamilyStream& stream);

/// `node` is the label of all series.
void add_cache(const CacheUsage& cache, const Labels& node, FamilyStream& stream);

}  // namespace lockstep::exporter
