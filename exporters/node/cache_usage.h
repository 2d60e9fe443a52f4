// How full the node's cache is, and who fills it: stores are their users' alone, but each writes what it
// holds into <cache>/claims (staging/cache/ledger.h), where the plugin has made a file for him. Walking it
// costs a stat per file, so an answer is kept for a while and a walk stops at a number of files.
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

struct CacheUsage {
  std::optional<std::uint64_t> bytes;              ///< on disk; nothing where not all of it could be read
  std::optional<std::uint64_t> file_system_bytes;  ///< size of the file system that holds it
  std::optional<std::uint64_t> available_bytes;    ///< of that file system, for users
  std::map<std::string, std::uint64_t> claims;     ///< bytes by user's number
};

class CacheWatcher {
 public:
  CacheWatcher(std::filesystem::path cache, std::chrono::seconds keep)
      : cache_(std::move(cache)), keep_(keep) {}

  /// As measured at most `keep` ago. A cache that does not exist yet, or no cache (an empty path), has no
  /// numbers.
  const CacheUsage& usage(std::chrono::steady_clock::time_point now);

 private:
  std::filesystem::path cache_;
  std::chrono::seconds keep_;
  std::optional<std::chrono::steady_clock::time_point> measured_;
  CacheUsage usage_;
};

}  // namespace lockstep::exporter
