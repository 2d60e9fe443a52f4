// How full the node's cache is, and which users fill it. The exporter may not look into users' stores, but
// each user records what it holds in <cache>/claims (staging/cache/usage_claims.h), in a file that the plugin
// has made. Walking the cache costs a stat per file, so a result is kept for a while and a walk stops at a
// maximum number of files.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>

namespace lockstep::exporter {

/// The size of a user's store, as that user recorded it.
struct CacheClaim {
  std::uint64_t bytes = 0;
  std::string user_name{};  ///< set by the Collector; empty if the user has none
};

struct CacheUsage {
  std::optional<std::uint64_t> bytes;              ///< on disk; nullopt if a part could not be read
  std::optional<std::uint64_t> file_system_bytes;  ///< size of the file system that holds it
  std::optional<std::uint64_t> available_bytes;    ///< free for users on that file system
  std::map<std::string, CacheClaim> claims;        ///< by user id
};

class CacheUsageMeter {
 public:
  CacheUsageMeter(std::filesystem::path cache, std::chrono::seconds keep)
      : cache_(std::move(cache)), keep_(keep) {}

  /// The usage, measured at most `keep` ago. Without values if the cache does not exist yet or the path is
  /// empty.
  const CacheUsage& usage(std::chrono::steady_clock::time_point now);

 private:
  std::filesystem::path cache_;
  std::chrono::seconds keep_;
  std::optional<std::chrono::steady_clock::time_point> measured_;
  CacheUsage usage_;
};

}  // namespace lockstep::exporter
