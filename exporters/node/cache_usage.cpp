#include "exporters/node/cache_usage.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <system_error>
#include <utility>

#include "common/files.h"

namespace lockstep::exporter {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEntries = 200'000;
constexpr std::size_t kMaxUsers = 1000;

// Bytes on disk below a folder; counts hard-linked files once. Returns nullopt if a part cannot be read or
// there are too many files.
std::optional<std::uint64_t> bytes_below(const fs::path& folder) {
  std::uint64_t bytes = 0;
  std::set<std::pair<dev_t, ino_t>> linked;
  std::size_t entries = 0;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, error);
  while (!error && entry != fs::recursive_directory_iterator()) {
    if (++entries > kMaxEntries) return std::nullopt;
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

// Reads the number in a user's file. The user may have written anything into it.
std::optional<std::uint64_t> read_claim(const fs::path& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  std::array<char, 32> text{};
  const ssize_t got = fd ? ::pread(fd.get(), text.data(), text.size(), 0) : -1;
  const char* begin = text.data();
  const char* const end = begin + std::max<ssize_t>(got, 0);
  while (begin != end && *begin == ' ') ++begin;
  std::uint64_t bytes = 0;
  if (std::from_chars(begin, end, bytes).ec != std::errc()) return std::nullopt;
  return bytes;
}

std::map<std::string, CacheClaim> read_claims(const fs::path& folder) {
  std::map<std::string, CacheClaim> claims;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    const std::string user = entry->path().filename().string();
    if (user.find_first_not_of("0123456789") != std::string::npos || claims.size() == kMaxUsers) continue;
    if (const auto bytes = read_claim(entry->path())) claims.emplace(user, CacheClaim{.bytes = *bytes});
  }
  return claims;
}

CacheUsage measure(const fs::path& cache) {
  CacheUsage usage;
  struct statvfs status = {};
  if (cache.empty() || ::statvfs(cache.c_str(), &status) != 0) return usage;
  usage.file_system_bytes = std::uint64_t{status.f_blocks} * status.f_frsize;
  usage.available_bytes = std::uint64_t{status.f_bavail} * status.f_frsize;
  usage.bytes = bytes_below(cache);
  usage.claims = read_claims(cache / "claims");
  return usage;
}

}  // namespace

const CacheUsage& CacheUsageMeter::usage(std::chrono::steady_clock::time_point now) {
  if (!measured_ || now - *measured_ >= keep_) {
    usage_ = measure(cache_);
    measured_ = now;
  }
  return usage_;
}

}  // namespace lockstep::exporter
