// The contents of a store, and how much of it is in use.
//
// Threads: values.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/cache/object.h"

namespace lockstep::cache {

/// A time of the node's clock, as in files' modification times.
using Time = std::chrono::sys_time<std::chrono::nanoseconds>;

/// a + b, or the largest number if that overflows.
std::uint64_t sum(std::uint64_t a, std::uint64_t b);

struct ObjectUsage {
  ObjectInfo info;      ///< without its list of files; bytes as measured, if measuring was requested
  Time last_use;        ///< not later than now; 1970 if the recorded time is impossible
  std::string problem;  ///< why its description cannot be read, or ""
};

/// A copy under way, or a partial copy that a process left.
struct IncomingUsage {
  std::string name{};
  std::uint64_t reserved = 0;  ///< bytes that it will hold
  std::uint64_t present = 0;   ///< bytes that are there
  bool alive = false;          ///< a process is copying it
  Time newest{};               ///< when something was last written there
  /// The bytes that count for it.
  std::uint64_t bytes() const { return present + bytes_pending(); }
  std::uint64_t bytes_pending() const { return alive && reserved > present ? reserved - present : 0; }
};

struct Usage {
  std::vector<ObjectUsage> objects;
  std::vector<IncomingUsage> incoming;
  /// Bytes of files that only jobs' folders still hold: of objects that have been removed or replaced.
  std::uint64_t jobs = 0;

  std::uint64_t bytes() const { return sum(bytes_present(), bytes_pending()); }
  std::uint64_t bytes_present() const;
  /// What the copies under way will still add.
  std::uint64_t bytes_pending() const;
};

/// Bytes that a file, or the files below a folder, occupy, without holes, and when the newest of them was changed.
struct Measure {
  std::uint64_t bytes = 0;
  Time newest;
};
Measure measure(FileSystem& system, const std::filesystem::path& folder);

/// Bytes of the files in jobs' folders that have no name outside them.
std::uint64_t bytes_only_in_jobs(FileSystem& system, const std::filesystem::path& jobs);

/// A file's modification time.
Time modified(const struct stat& status);
Time now();

}  // namespace lockstep::cache
