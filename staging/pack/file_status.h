// stat(2) calls that several parts of the pack library need.
//
// Threads: safe from any.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>

#include "common/error.h"

namespace lockstep::pack {

/// stat(2). Throws Error naming the path.
inline struct stat status_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) fail_errno("{}", path.string());
  return status;
}

/// As status_of(). Also throws Error if the path is not a regular file.
inline struct stat status_of_file(const std::filesystem::path& path) {
  const struct stat status = status_of(path);
  if (!S_ISREG(status.st_mode)) fail("{} is not a regular file", path.string());
  return status;
}

inline bool is_file(const std::filesystem::path& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

/// When a file's content last changed, in nanoseconds since 1970.
inline std::int64_t modified_ns(const struct stat& status) {
  return std::int64_t{status.st_mtim.tv_sec} * 1'000'000'000 + status.st_mtim.tv_nsec;
}

/// When anything about a file last changed. A program can set the time above (`touch -r`), but not this one.
inline std::int64_t changed_ns(const struct stat& status) {
  return std::int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec;
}

/// "pack/" is "pack".
inline std::filesystem::path without_slash(const std::filesystem::path& path) {
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace lockstep::pack
