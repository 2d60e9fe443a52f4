#include "staging/cache/store.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <thread>

#include "common/error.h"
#include "common/units.h"
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

namespace {

/// Makes only the last folder of a path: a misspelt disk must not fill another disk.
void make_cache(FileSystem& system, const fs::path& folder) {
  try {
    (void)system.make_folder(folder, 0700);
  } catch (const Error&) {
    fs::path missing;
    const fs::path made = (fs::absolute(folder) / ".").lexically_normal().parent_path();  // also of "a/"
    for (fs::path above = made.parent_path(); above.has_relative_path() && !system.status(above);
         above = above.parent_path()) {
      missing = above;
    }
    if (missing.empty()) throw;
    fail("cannot make the cache {}: the folder {} does not exist; make it, or choose another cache folder",
         folder.string(), missing.string());
  }
}

}  // namespace

Store::Store(fs::path folder, FileSystem& system) : Store(std::move(folder), StoreOptions{}, system) {
}

Store::Store(fs::path folder, StoreOptions options, FileSystem& system)
    : system_(system),
      options_(std::move(options)),
      folder_(std::move(folder)),
      objects_(folder_ / "objects") {
  make_cache(system_, folder_);
  for (const fs::path& made : {folder_, objects_, folder_ / "locks", folder_ / "leases"}) {
    if (made != folder_) (void)system_.make_folder(made, 0700);
    const std::optional<struct stat> status = system_.status(made);
    if (!status || !S_ISDIR(status->st_mode)) fail("the cache {} is not a folder", made.string());
    if (status->st_uid != ::geteuid()) {
      fail("the cache {} belongs to user {}, not to {}; use your own store", made.string(), status->st_uid,
           ::geteuid());
    }
  }
}

ObjectInfo Store::info(const std::string& name, bool brief) const {
  return read_object(objects_ / name / kDescription, name, brief);
}

std::vector<ObjectInfo> Store::list() const {
  std::vector<ObjectInfo> objects;
  for (const std::string& name : system_.list(objects_)) {
    if (!object_of(name).empty()) continue;
    try {
      objects.push_back(info(name, true));
    } catch (const Error&) {
      if (has(name)) throw;  // else it was removed meanwhile
    }
  }
  return objects;
}

std::optional<ObjectLock> Store::try_lock(const fs::path& file, FileSystem::LockKind kind, bool wait) {
  for (;;) {
    UniqueFd fd = system_.open(file, O_RDWR | O_CREAT | O_NOFOLLOW, 0600);
    if (!system_.lock(fd.get(), kind, wait, file)) return {};
    // A process that holds a lock file exclusively may unlink it. A lock on an unlinked file protects nothing.
    struct stat locked {};
    const std::optional<struct stat> named = system_.status(file);
    if (::fstat(fd.get(), &locked) == 0 && named && named->st_ino == locked.st_ino)
      return ObjectLock(std::move(fd));
  }
}

ObjectLock Store::lock(const std::string& name, FileSystem::LockKind kind,
                       const std::function<void()>& waiting, std::chrono::milliseconds timeout) {
  const fs::path file = folder_ / "locks" / name;
  if (std::optional<ObjectLock> hold = try_lock(file, kind, false)) return std::move(*hold);
  if (waiting) waiting();
  if (timeout.count() == 0) return std::move(*try_lock(file, kind, true));
  if (std::optional<ObjectLock> lock = wait_for_lock(file, kind, timeout)) return std::move(*lock);
  throw NoProgress(fmt::format(
      "the process that holds the lock {} has made no progress for {}: it is stopped or hangs; find it with lslocks",
      file.string(), format_seconds(std::chrono::duration<double>(timeout).count())));
}

// A process that copies touches the lock file once a second, and one that makes space after each object. Counts polls
// instead of time: while this process is stopped together with the other one, as in a suspended job, the timeout does
// not advance.
std::optional<ObjectLock> Store::wait_for_lock(
    const fs::path& file, FileSystem::LockKind kind, std::chrono::milliseconds timeout,
    const std::function<void(std::chrono::milliseconds waited)>& each) {
  constexpr std::chrono::milliseconds kMaxPollInterval(50);
  std::chrono::milliseconds interval(1);
  std::chrono::milliseconds waited{};
  Time seen{};
  for (std::chrono::milliseconds quiet{}; quiet < timeout; quiet += interval) {
    interval = std::min(2 * interval, kMaxPollInterval);
    std::this_thread::sleep_for(interval);
    if (std::optional<ObjectLock> lock = try_lock(file, kind, false)) return lock;
    if (each) each(waited += interval);
    const std::optional<struct stat> status = system_.status(file);
    if (!status || modified(*status) == seen) continue;
    seen = modified(*status);
    quiet = {};
  }
  return {};
}

std::optional<ObjectLock> Store::lock_readers(const std::string& name) {
  const fs::path folder = folder_ / "leases" / name;
  (void)system_.make_folder(folder, 0700);
  UniqueFd fd = system_.open(folder, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
  if (!system_.lock(fd.get(), FileSystem::LockKind::exclusive, false, folder)) return {};
  return ObjectLock(std::move(fd));
}

void Store::remove(const std::string& name) {
  const fs::path removed = hidden(objects_, kRemoved, name);
  {
    const std::lock_guard known(known_mutex_);
    known_bytes_.erase(name);
    jobs_until_ = {};  // a job's folder may now be the only holder of its files
  }
  system_.remove_all(removed);
  system_.rename(objects_ / name, removed);
  system_.remove_all(removed);
  system_.sync_folder(objects_);
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
  usage.jobs = bytes_only_in_jobs(system_, folder_ / "jobs");
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
  jobs_bytes_ = bytes_only_in_jobs(system_, folder_ / "jobs");
  const auto end = std::chrono::steady_clock::now();
  jobs_until_ = end + 9 * (end - begin);
  return jobs_bytes_;
}

bool Store::remove_incoming(const std::string& name) {
  const std::optional<ObjectLock> lock =
      try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
  if (!lock) return false;
  system_.remove_all(hidden(objects_, kIncoming, name));
  if (!has(name)) forget(name);
  return true;
}

// The caller holds the object's exclusive lock. A process that waits for it then notices that the lock file was
// unlinked.
void Store::forget(const std::string& name) {
  const fs::path leases = folder_ / "leases" / name;
  const auto status = system_.status(leases);
  if (status && !(S_ISDIR(status->st_mode) && leased(name))) system_.remove_all(leases);
  system_.unlink(folder_ / "locks" / name);
}

int Store::recover_folders(const std::vector<std::string>& entries, std::chrono::seconds abandoned) {
  int removed = 0;
  for (const std::string& entry : entries) {
    const std::string name = object_of(entry);
    if (name.empty()) continue;
    const std::optional<ObjectLock> lock =
        try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
    if (!lock) continue;  // its copy is under way
    if (entry.starts_with(kIncoming) && is_folder(system_, objects_ / entry) &&
        now() - measure(system_, objects_ / entry / "files").newest < abandoned)
      continue;
    system_.remove_all(objects_ / entry);
    if (!has(name) && !system_.status(hidden(objects_, kIncoming, name))) forget(name);
    ++removed;
  }
  return removed;
}

// Removes locks and leases of objects that no longer exist.
void Store::recover_names(const fs::path& folder, const std::set<std::string>& known) {
  for (const std::string& name : system_.list(folder)) {
    if (known.contains(name) || name == kEvictionLock || name == kHeld) continue;
    const std::optional<ObjectLock> lock =
        try_lock(folder_ / "locks" / name, FileSystem::LockKind::exclusive, false);
    if (!lock) continue;  // a process is about to make the object
    if (!has(name) && !system_.status(hidden(objects_, kIncoming, name))) forget(name);
  }
}

int Store::recover(std::chrono::seconds abandoned) {
  const std::vector<std::string> entries = system_.list(objects_);
  const int removed = recover_folders(entries, abandoned);
  std::set<std::string> known;
  for (const std::string& entry : entries) known.insert(object_of(entry).empty() ? entry : object_of(entry));
  recover_names(folder_ / "locks", known);
  recover_names(folder_ / "leases", known);
  return removed;
}

}  // namespace lockstep::cache
