// Leases on objects. And makes space for a new object: evicts the least recently used objects first and keeps those in use.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

#include "common/error.h"
#include "common/leaf/random.h"
#include "common/units.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxNames = 16;     // tried for one step's lease
constexpr char kSeparator = '-';  // between the step and the random digits

struct stat status_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return status;
}

// Ignores errors: times only decide the order of eviction.
void set_time(const fs::path& path, Time time) noexcept {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                   {.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()}};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

// If the folder of leases is faulty, the step makes a separate copy instead of failing.
FileSystem::Linked try_link(FileSystem& system, const fs::path& held_file, const fs::path& lease) {
  try {
    return system.try_link(held_file, lease);
  } catch (const Error& error) {
    throw NoLease(error.what());
  }
}

/// True if nobody holds its lock, or it is not a lease.
bool ended(FileSystem& system, const fs::path& lease) {
  const auto status = system.status(lease);
  if (!status || !S_ISREG(status->st_mode)) return true;
  const std::optional<UniqueFd> fd = system.open_if_there(lease, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return !fd || system.lock(fd->get(), FileSystem::LockKind::exclusive, false, lease);
}

}  // namespace

std::string step_of(const std::string& lease) {
  return lease.substr(0, lease.find(kSeparator));
}

void link_lease(FileSystem& system, const fs::path& held_file, const fs::path& leases) {
  // Read-only: any descriptor can carry a lock, and nothing is ever written to these files.
  const UniqueFd held = system.open(held_file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (system.lock(held.get(), FileSystem::LockKind::exclusive, false, held_file)) {
    fail("nobody holds the lease file {}; the step's slurmstepd must hold it open and locked",
         held_file.string());
  }
  const struct stat wanted = status_of(held.get(), held_file);
  const std::string step = held_file.filename().string();
  std::string name = step;
  for (int tries = 0; tries < kMaxNames; ++tries) {
    const fs::path lease = leases / name;
    const auto linked = try_link(system, held_file, lease);
    if (linked == FileSystem::Linked::made) return;
    if (linked == FileSystem::Linked::other_file_system) {
      throw NoLease(fmt::format("cannot make a lease in {}: {} is on another file system", leases.string(),
                                held_file.string()));
    }
    const auto named = system.status(lease);
    if (named && named->st_ino == wanted.st_ino && named->st_dev == wanted.st_dev) return;
    // It belongs to a step of this name from before the node rebooted or, in the shared store, to another
    // user.
    if (named && named->st_uid == ::geteuid() && ended(system, lease)) {
      system.remove_all(lease);
    } else {
      name = step + kSeparator + random_hex(8);  // random, so that nobody can take the name first
    }
  }
  throw NoLease(fmt::format("cannot make a lease in {}: all names are taken", leases.string()));
}

void Store::add_lease(const std::string& name, const fs::path& held_file) {
  if (!has(name)) fail("object {} is not in the cache {}; put its source again", name, folder_.string());
  const fs::path leases = folder_ / "leases" / name;
  (void)system_.make_folder(leases, 0700);
  link_lease(system_, held_file, leases);
  touch(name);
}

std::vector<LeaseHolder> Store::leases(const std::string& name) {
  const fs::path folder = folder_ / "leases" / name;
  const auto status = system_.status(folder);
  if (!status || !S_ISDIR(status->st_mode)) return {};
  std::vector<LeaseHolder> alive;
  bool ended = false;
  for (const std::string& step : system_.list(folder)) {
    if (std::optional<LeaseHolder> lease = read_lease(folder / step)) {
      alive.push_back(std::move(*lease));
    } else {
      ended = true;
    }
  }
  if (ended) {
    // The steps ended at an unknown time before now. Their end counts in the order of last uses, but must not keep the
    // object longer. Removing names has changed the folder's time, which counts as a use: restore it.
    set_time(folder, modified(*status));
    if (has(name)) set_time(objects_ / name / kDescription, std::max(last_use(name), now() - options_.keep));
  }
  return alive;
}

std::optional<LeaseHolder> Store::read_lease(const fs::path& file) {
  const auto status = system_.status(file);
  if (!status) return {};
  if (!S_ISREG(status->st_mode)) {  // not a lease
    system_.remove_all(file);
    return {};
  }
  LeaseHolder lease{.step = step_of(file.filename().string()), .user = status->st_uid};
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return {};
  if (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, file)) return lease;
  system_.unlink_if_there(file);  // another process may have removed it
  return {};
}

void Store::touch(const std::string& name) noexcept {
  set_time(objects_ / name / kDescription, now());
}

Time Store::last_use(const std::string& name) const {
  std::optional<struct stat> used;
  if (is_folder(system_, objects_ / name)) used = system_.status(objects_ / name / kDescription);
  if (!used) used = system_.status(objects_ / name);  // not an object, but put there by somebody
  if (!used) fail("object {} is not in the cache {}", name, folder_.string());
  const auto leases = system_.status(folder_ / "leases" / name);
  const Time last = std::max(modified(*used), leases ? modified(*leases) : Time());
  // A time in the future (a wrong clock) would protect the object until then.
  if (last > now() + options_.keep) return {};
  return std::min(now(), last);
}

namespace {

std::uint64_t excess(std::uint64_t wanted, std::uint64_t limit) {
  return wanted > limit ? wanted - limit : 0;
}

}  // namespace

/// One call's work. The caller holds the store's eviction lock.
class Eviction {
 public:
  Eviction(Store& store, std::string name, std::uint64_t bytes)
      : store_(store),
        options_(store.options_),
        name_(std::move(name)),
        bytes_(bytes),
        usage_(store.known_usage()) {
    for (const IncomingUsage& copy : usage_.incoming) {
      if (copy.name == name_) present_ = copy.present;
    }
    std::erase_if(usage_.incoming, [&](const IncomingUsage& copy) { return copy.name == name_; });
    std::erase_if(usage_.objects, [&](const ObjectUsage& object) { return object.info.name == name_; });
    pending_bytes_ = usage_.bytes_pending();
    used_ = usage_.bytes();
    free_ = store.system_.free_bytes(store.folder_);
  }

  void make_space() {
    if (missing() > 0) evict();
  }

 private:
  std::uint64_t over_quota() const {
    return options_.quota > 0 ? excess(sum(used_, bytes_), options_.quota) : 0;
  }
  std::uint64_t over_disk() const {
    return excess(sum(sum(excess(bytes_, present_), pending_bytes_), options_.min_free), free_);
  }
  std::uint64_t missing() const { return std::max(over_quota(), over_disk()); }

  void freed(std::uint64_t bytes) {
    used_ = excess(used_, bytes);
    free_ = sum(free_, bytes);
  }

  /// The objects that may be evicted, least recently used first.
  std::vector<ObjectUsage> idle() {
    std::vector<ObjectUsage> objects;
    for (ObjectUsage& object : usage_.objects) {
      if (store_.in_use(object.info.name)) {
        in_use_ = sum(in_use_, object.info.bytes);
        continue;
      }
      // in_use() may have updated it, for steps that have ended.
      if (store_.has(object.info.name)) object.last_use = store_.last_use(object.info.name);
      if (now() - object.last_use < options_.keep) {
        recent_ = sum(recent_, object.info.bytes);
      } else {
        objects.push_back(object);
      }
    }
    std::stable_sort(objects.begin(), objects.end(),
                     [](const ObjectUsage& a, const ObjectUsage& b) { return a.last_use < b.last_use; });
    return objects;
  }

  void evict() {
    const std::vector<ObjectUsage> objects = idle();
    std::uint64_t possible = 0;
    for (const ObjectUsage& object : objects) possible = sum(possible, object.info.bytes);
    for (const IncomingUsage& copy : usage_.incoming) {
      if (!copy.alive) possible = sum(possible, copy.bytes());
    }
    if (possible < missing()) refuse();
    for (const ObjectUsage& object : objects) {
      if (missing() == 0) return;
      if (store_.evict(object.info.name, options_.keep)) freed(object.info.bytes);
      store_.show_eviction_progress();
    }
    for (const IncomingUsage& copy : usage_.incoming) {
      if (missing() == 0) return;
      if (!copy.alive && store_.remove_incoming(copy.name)) freed(copy.bytes());
      store_.show_eviction_progress();
    }
    if (missing() > 0) refuse();
  }

  [[noreturn]] void refuse() {
    const std::string where = store_.folder_.string();
    if (over_quota() > 0) {
      throw NoSpace(fmt::format(
          "needs {}, quota {}, {} of it in use by running jobs{}; stage less, wait for jobs to end, or ask for a larger quota",
          format_bytes(bytes_), format_bytes(options_.quota), format_bytes(in_use_ + usage_.jobs),
          others_text()));
    }
    const std::string kept = options_.min_free > 0
                                 ? fmt::format(", {} of it must stay free", format_bytes(options_.min_free))
                                 : std::string();
    throw NoSpace(fmt::format("needs {}, and the disk of the cache {} has {} free{}{}; free space there",
                              format_bytes(excess(bytes_, present_)), where,
                              format_bytes(excess(free_, pending_bytes_)), kept, others_text()));
  }

  /// Other uses of the space, if there are any.
  std::string others_text() const {
    std::uint64_t copying = 0;
    for (const IncomingUsage& copy : usage_.incoming) copying = sum(copying, copy.bytes());
    std::string text;
    if (copying > 0) text += fmt::format(", {} being copied", format_bytes(copying));
    if (recent_ > 0) {
      text += fmt::format(", {} used less than {} ago", format_bytes(recent_),
                          format_seconds(static_cast<double>(options_.keep.count())));
    }
    return text;
  }

  Store& store_;
  const StoreOptions& options_;
  std::string name_;
  std::uint64_t bytes_;
  Usage usage_;
  std::uint64_t present_ = 0;        // bytes of this copy that are on the disk
  std::uint64_t pending_bytes_ = 0;  // to other copies, but not written yet
  std::uint64_t used_ = 0;           // without this copy
  std::uint64_t free_ = 0;           // on the disk
  std::uint64_t in_use_ = 0;
  std::uint64_t recent_ = 0;
};

ObjectLock Store::lock_eviction() {
  const fs::path file = folder_ / "locks" / kEvictionLock;
  constexpr auto kKind = FileSystem::LockKind::exclusive;
  if (std::optional<ObjectLock> lock = try_lock(file, kKind, false)) return std::move(*lock);
  bool said = false;
  const auto say = [&](std::chrono::milliseconds waited) {
    if (said || waited < options_.space_notice) return;
    said = true;
    if (options_.notice)
      options_.notice(fmt::format("waiting for another process that makes space in {}", folder_.string()));
  };
  if (std::optional<ObjectLock> lock = wait_for_lock(file, kKind, options_.space_timeout, say))
    return std::move(*lock);
  fail(
      "another process makes space in {} and has made no progress for {}: it is stopped or hangs; find it with lslocks as the holder of {}",
      folder_.string(), format_seconds(std::chrono::duration<double>(options_.space_timeout).count()),
      file.string());
}

void Store::show_eviction_progress() {
  system_.set_modified(folder_ / "locks" / kEvictionLock, now().time_since_epoch().count());
}

void Store::make_space(const std::string& name, std::uint64_t bytes) {
  Eviction(*this, name, bytes).make_space();
}

void Store::drop(const fs::path& incoming) noexcept {
  try {
    system_.remove_all(incoming);
  } catch (const Error&) {
  }
}

// If a job's folder holds hard links to the files, removing the object would free nothing and lose the copy.
bool Store::linked_elsewhere(const fs::path& folder) const {
  if (!is_folder(system_, folder)) return false;
  for (const std::string& name : system_.list_if_there(folder).value_or(std::vector<std::string>())) {
    const auto status = system_.status(folder / name);
    if (!status) continue;
    if (S_ISDIR(status->st_mode) ? linked_elsewhere(folder / name) : status->st_nlink > 1) return true;
  }
  return false;
}

bool Store::in_use(const std::string& name) {
  if (leased(name)) return true;
  if (!is_folder(system_, objects_ / name)) return false;
  try {
    return linked_elsewhere(files(name));
  } catch (const Error&) {
    return has(name);  // unknown
  }
}

bool Store::evict(const std::string& name, std::chrono::seconds keep) {
  const fs::path lock_file = folder_ / "locks" / name;
  const std::optional<ObjectLock> lock = try_lock(lock_file, FileSystem::LockKind::exclusive, false);
  if (!lock || !has(name)) return false;
  // Check the use only with both locks: a process that takes a lease holds one of them.
  const std::optional<ObjectLock> readers =
      is_folder(system_, folder_ / "leases" / name) ? lock_readers(name) : ObjectLock(UniqueFd());
  if (!readers || in_use(name) || now() - last_use(name) < keep) return false;
  remove(name);
  forget(name);
  return true;
}

}  // namespace lockstep::cache
