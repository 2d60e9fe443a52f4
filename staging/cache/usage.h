// What a store holds, and what of it is in use.
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

/// Of the node's clock, as files' times are.
using Time = std::chrono::sys_time<std::chrono::nanoseconds>;

/// A sum that stays at the largest number instead of starting again from 0.
std::uint64_t sum(std::uint64_t a, std::uint64_t b);

struct ObjectUsage {
  ObjectInfo info;      ///< without its list of files; its bytes as measured where that was asked for
  Time last_use;        ///< not later than now; 1970 where it makes no sense
  std::string problem;  ///< why its description cannot be read, or ""
};

/// A copy under way, or one that was left half-done.
struct IncomingUsage {
  std::string name{};
  std::uint64_t reserved = 0;  ///< bytes that it is to hold
  std::uint64_t present = 0;   ///< bytes that are there
  bool alive = false;          ///< somebody is copying it
  Time newest{};               ///< when something was last written there
  /// What has to be counted for it.
  std::uint64_t bytes() const { return present + bytes_to_come(); }
  std::uint64_t bytes_to_come() const { return alive && reserved > present ? reserved - present : 0; }
};

struct Usage {
  std::vector<ObjectUsage> objects;
  std::vector<IncomingUsage> incoming;
  /// In jobs' folders only: of objects that have been removed or replaced since.
  std::uint64_t jobs = 0;

  std::uint64_t bytes() const { return sum(bytes_there(), bytes_to_come()); }
  std::uint64_t bytes_there() const;
  /// What the copies under way are still to bring.
  std::uint64_t bytes_to_come() const;
};

/// Bytes that the files below a folder take, and when the newest of them was changed. Holes do not count.
struct Measure {
  std::uint64_t bytes = 0;
  Time newest;
};
Measure measure(FileSystem& system, const std::filesystem::path& folder);

/// A file's modification time.
Time modified(const struct stat& status);
Time now();

}  // namespace lockstep::cache
