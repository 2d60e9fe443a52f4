#include "staging/cache/usage.h"

#include <algorithm>
#include <limits>
#include <map>

#include "staging/cache/layout.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

/// The smaller of length and occupied space: a file with holes is longer, one with a partial last block is shorter.
std::uint64_t bytes_of(const struct stat& status) {
  return std::min(static_cast<std::uint64_t>(status.st_size),
                  static_cast<std::uint64_t>(status.st_blocks) * S_BLKSIZE);
}

bool counts_all(const std::string&) {
  return true;
}

/// Calls `found` for every file below a folder, of its own entries only those for which `counts`. Skips files that vanish
/// meanwhile.
template <typename Found>
void each_file(FileSystem& system, const fs::path& folder, const Found& found,
               bool (*counts)(const std::string& name) = counts_all) {
  const auto own = system.status(folder);
  if (!own || !S_ISDIR(own->st_mode)) return;
  for (const std::string& name : system.list_if_there(folder).value_or(std::vector<std::string>())) {
    if (!counts(name)) continue;
    const auto status = system.status(folder / name);
    if (!status) continue;
    if (S_ISDIR(status->st_mode)) {
      each_file(system, folder / name, found);
    } else {
      found(*status);
    }
  }
}

}  // namespace

std::uint64_t sum(std::uint64_t a, std::uint64_t b) {
  std::uint64_t result = 0;
  return __builtin_add_overflow(a, b, &result) ? std::numeric_limits<std::uint64_t>::max() : result;
}

std::uint64_t Usage::bytes_present() const {
  std::uint64_t total = jobs;
  for (const ObjectUsage& object : objects) total = sum(total, object.info.bytes);
  for (const IncomingUsage& copy : incoming) total = sum(total, copy.present);
  return total;
}

std::uint64_t Usage::bytes_pending() const {
  std::uint64_t total = 0;
  for (const IncomingUsage& copy : incoming) total = sum(total, copy.bytes_pending());
  return total;
}

Time modified(const struct stat& status) {
  return Time(std::chrono::seconds(status.st_mtim.tv_sec) + std::chrono::nanoseconds(status.st_mtim.tv_nsec));
}

Time now() {
  return std::chrono::time_point_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now());
}

Measure measure(FileSystem& system, const fs::path& folder) {
  Measure result;
  if (const auto own = system.status(folder)) {
    result.newest = modified(*own);
    if (!S_ISDIR(own->st_mode)) result.bytes = bytes_of(*own);
  }
  each_file(system, folder, [&](const struct stat& status) {
    result.bytes = sum(result.bytes, bytes_of(status));
    result.newest = std::max(result.newest, modified(status));
  });
  return result;
}

std::uint64_t bytes_only_in_jobs(FileSystem& system, const fs::path& jobs) {
  struct Seen {
    nlink_t names = 0;
    nlink_t links = 0;
    std::uint64_t bytes = 0;
  };
  std::map<ino_t, Seen> files;
  const auto found = [&](const struct stat& status) {
    Seen& seen = files[status.st_ino];
    ++seen.names;
    seen.links = status.st_nlink;
    seen.bytes = bytes_of(status);
  };
  each_file(system, jobs, found, is_jobs_entry);
  std::uint64_t total = 0;
  for (const auto& [inode, seen] : files) {
    if (seen.names >= seen.links) total = sum(total, seen.bytes);
  }
  return total;
}

}  // namespace lockstep::cache
