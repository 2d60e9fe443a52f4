#include "exporters/node/cache_usage.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <set>
#include <system_error>
#include <utility>

namespace lockstep::exporter {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaximumEntries = 200'000;

// Bytes on disk below a folder, hard-linked files once; nothing where a part cannot be read or there is too
// much.
std::optional<std::uint64_t> bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> linked;
  std::size_t entries = 0;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    if (++entries > kMaximumEntries) return std::nullopt;
    struct stat status = {};
    const bool regular = ::lstat(entry->path().c_str(), &status) == 0 && S_ISREG(status.st_mode);
    if (regular && (status.st_nlink == 1 || linked.emplace(status.st_dev, status.st_ino).second)) {
      bytes += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
    entry.increment(error);
  }
  if (error) return std::nullopt;
  return bytes;
}

CacheUsage measure(const fs::path& cache) {
  CacheUsage usage;
  struct statvfs status = {};
  if (cache.empty() || ::statvfs(cache.c_str(), &status) != 0) return usage;
  usage.file_system_bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  usage.available_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  usage.bytes = bytes_below(cache);
  return usage;
}

}  // namespace

const CacheUsage& CacheWatcher::usage(std::chrono::steady_clock::time_point now) {
  if (!measured_ || now - *measured_ >= keep_) {
    usage_ = measure(cache_);
    measured_ = now;
  }
  return usage_;
}

}  // namespace lockstep::exporter
