#include "staging/cache/lease.h"

#include <fcntl.h>
#include <unistd.h>

#include <ctime>

#include "common/error.h"
#include "common/leaf/random.h"
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

}  // namespace lockstep::cache
