#include "staging/cache/usage.h"

#include <fcntl.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>

#include "common/error.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlock = 512;  // of st_blocks

/// The smaller of length and occupied space: a file with holes is longer, one with a partial last block is shorter.
std::uint64_t bytes_of(const struct stat& status) {
  return std::min(static_cast<std::uint64_t>(status.st_size),
                  static_cast<std::uint64_t>(status.st_blocks) * kBlock);
}

/// Calls `found` for every file below a folder. Skips files that vanish meanwhile.
template <typename Found>
void each_file(FileSystem& system, const fs::path& folder, const Found& found) {
  const auto own = system.status(folder);
  if (!own || !S_ISDIR(own->st_mode)) return;
  for (const std::string& name : system.list_if_there(folder).value_or(std::vector<std::string>())) {
    const auto status = system.status(folder / name);
    if (!status) continue;
    if (S_ISDIR(status->st_mode)) {
      each_file(system, folder / name, found);
    } else {
      found(*status);
    }
  }
}

/// Bytes of the files in jobs' folders that have no name outside them.
std::uint64_t jobs_bytes(FileSystem& system, const fs::path& jobs) {
  struct Seen {
    nlink_t names = 0;
    nlink_t links = 0;
    std::uint64_t bytes = 0;
  };
  std::map<ino_t, Seen> files;
  each_file(system, jobs, [&](const struct stat& status) {
    Seen& seen = files[status.st_ino];
    ++seen.names;
    seen.links = status.st_nlink;
    seen.bytes = bytes_of(status);
  });
  std::uint64_t total = 0;
  for (const auto& [inode, seen] : files) {
    if (seen.names >= seen.links) total = sum(total, seen.bytes);
  }
  return total;
}

std::uint64_t read_reserved(FileSystem& system, const fs::path& incoming) {
  const fs::path file = incoming / kReserved;
  const std::optional<UniqueFd> fd = system.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return 0;
  char text[20];
  const std::size_t got = system.read_at(fd->get(), std::as_writable_bytes(std::span(text)), 0, file);
  const char* begin = text;
  while (begin != text + got && *begin == ' ') ++begin;
  std::uint64_t bytes = 0;
  std::from_chars(begin, text + got, bytes);
  return bytes;
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
  if (const auto own = system.status(folder)) result.newest = modified(*own);
  each_file(system, folder, [&](const struct stat& status) {
    result.bytes = sum(result.bytes, bytes_of(status));
    result.newest = std::max(result.newest, modified(status));
  });
  return result;
}

// The order matters: a process that publishes meanwhile first writes all bytes, then removes the reservation,
// then renames, then releases the lock.
IncomingUsage Store::incoming_usage(const std::string& name) {
  const fs::path folder = hidden(objects_, kIncoming, name);
  IncomingUsage copy{.name = name};
  copy.alive = !try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
  if (!is_folder(system_, folder)) return copy;
  copy.reserved = read_reserved(system_, folder);
  const Measure files = measure(system_, folder / "files");
  copy.present = files.bytes;
  copy.newest = files.newest;
  return copy;
}

std::optional<ObjectUsage> Store::object_usage(const std::string& name, bool measured) {
  ObjectUsage object;
  object.info.name = name;
  try {
    object.last_use = last_use(name);
    if (!is_folder(system_, objects_ / name))
      fail("{} is not a folder; lockstep-stage gc removes it", (objects_ / name).string());
    object.info = info(name, true);
  } catch (const Error& error) {
    if (!has(name)) return {};  // removed meanwhile
    object.problem = error.what();
  }
  if ((measured || !object.problem.empty()) && is_folder(system_, objects_ / name))
    object.info.bytes = measure(system_, objects_ / name / "files").bytes;
  return object;
}

template <typename Look>
Usage Store::look_at_entries(const Look& look) {
  Usage usage;
  for (const std::string& entry : system_.list(objects_)) {
    if (entry.starts_with(kRemoved)) continue;
    std::string name = entry;
    if (!object_of(entry).empty()) {
      name = object_of(entry);
      IncomingUsage copy = incoming_usage(name);
      if (system_.status(objects_ / entry)) {
        usage.incoming.push_back(std::move(copy));
        continue;
      }
      // Published or discarded meanwhile.
    }
    if (std::optional<ObjectUsage> object = look(name)) usage.objects.push_back(std::move(*object));
  }
  return usage;
}

Usage Store::usage(bool measured) {
  Usage usage = look_at_entries([&](const std::string& name) { return object_usage(name, measured); });
  usage.jobs = jobs_bytes(system_, folder_ / "jobs");
  return usage;
}

Usage Store::known_usage() {
  const std::lock_guard known_lock(known_mutex_);
  Usage usage = look_at_entries([&](const std::string& name) -> std::optional<ObjectUsage> {
    const auto known = known_bytes_.find(name);
    if (known != known_bytes_.end()) {
      ObjectUsage object;
      object.info.name = name;
      object.info.bytes = known->second;
      return object;
    }
    std::optional<ObjectUsage> object = object_usage(name, false);
    if (object && object->problem.empty()) known_bytes_.emplace(name, object->info.bytes);
    return object;
  });
  usage.jobs = known_jobs_bytes();
  return usage;
}

// Spends at most a tenth of the time on jobs' folders, which may hold many files.
std::uint64_t Store::known_jobs_bytes() {
  const auto begin = std::chrono::steady_clock::now();
  if (begin < jobs_until_) return jobs_bytes_;
  jobs_bytes_ = jobs_bytes(system_, folder_ / "jobs");
  const auto end = std::chrono::steady_clock::now();
  jobs_until_ = end + 9 * (end - begin);
  return jobs_bytes_;
}

}  // namespace lockstep::cache
