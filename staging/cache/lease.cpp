#include "staging/cache/lease.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <ctime>

#include "common/error.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

namespace {

constexpr int kMaxNames = 16;  // tried for one step's lease
constexpr char kMark = '-';    // between the step and what makes a name its own

struct stat status_of(int fd, const fs::path& path) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat {}", path.string());
  return status;
}

// Whether it works or not: times decide what goes first, nothing else.
void set_time(const fs::path& path, Time time) noexcept {
  const auto since = time.time_since_epoch();
  const auto seconds = std::chrono::floor<std::chrono::seconds>(since);
  const struct timespec times[] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                                   {.tv_sec = seconds.count(), .tv_nsec = (since - seconds).count()}};
  ::utimensat(AT_FDCWD, path.c_str(), times, AT_SYMLINK_NOFOLLOW);
}

std::uint64_t random_number() {
  // Nobody can take such a name before its step does.
  std::uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) != sizeof number) fail_errno("cannot get random bytes");
  return number;
}

// Whatever is wrong with the folder of leases is no reason to fail a step that can have its own copy.
FileSystem::Linked try_link(FileSystem& system, const fs::path& held_file, const fs::path& lease) {
  try {
    return system.try_link(held_file, lease);
  } catch (const Error& error) {
    throw NoLease(error.what());
  }
}

/// True where nobody locks it, or it is no lease at all.
bool ended(FileSystem& system, const fs::path& lease) {
  const auto status = system.status(lease);
  if (!status || !S_ISREG(status->st_mode)) return true;
  const std::optional<UniqueFd> fd = system.open_if_there(lease, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  return !fd || system.lock(fd->get(), FileSystem::LockKind::exclusive, false, lease);
}

}  // namespace

std::string step_of(const std::string& lease) {
  return lease.substr(0, lease.find(kMark));
}

void link_lease(FileSystem& system, const fs::path& held_file, const fs::path& leases) {
  // Read-only: any descriptor can carry a lock, and nothing is ever written to these files.
  const UniqueFd held = system.open(held_file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (system.lock(held.get(), FileSystem::LockKind::exclusive, false, held_file)) {
    fail("{}: nobody holds this lease file; the step's slurmstepd opens and locks it", held_file.string());
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
    const auto there = system.status(lease);
    if (there && there->st_ino == wanted.st_ino && there->st_dev == wanted.st_dev) return;
    // Of a step of this name before the node was started anew; or, in the shared store, somebody else's.
    if (there && there->st_uid == ::geteuid() && ended(system, lease)) {
      system.remove_all(lease);
    } else {
      name = fmt::format("{}{}{:016x}", step, kMark, random_number());
    }
  }
  throw NoLease(fmt::format("cannot make a lease in {}: all names are taken", leases.string()));
}

void Store::hold(const std::string& name, const fs::path& held_file) {
  if (!has(name)) fail("object {} is not in the cache {}; put its source again", name, folder_.string());
  const fs::path leases = folder_ / "leases" / name;
  make_own_folder(system_, leases);
  link_lease(system_, held_file, leases);
  touch(name);
}

std::vector<Lease> Store::leases(const std::string& name) {
  const fs::path folder = folder_ / "leases" / name;
  const auto status = system_.status(folder);
  if (!status || !S_ISDIR(status->st_mode)) return {};
  std::vector<Lease> alive;
  bool ended = false;
  for (const std::string& step : system_.list(folder)) {
    if (std::optional<Lease> lease = look_at(folder / step)) {
      alive.push_back(std::move(*lease));
    } else {
      ended = true;
    }
  }
  if (ended) {
    // The steps ended some time before now: in the order of last uses that is late, but it is no reason to
    // keep the object longer. Removing names has changed the folder's time, which counts as a use.
    set_time(folder, modified(*status));
    if (has(name)) set_time(objects_ / name / kDescription, std::max(last_use(name), now() - options_.keep));
  }
  return alive;
}

std::optional<Lease> Store::look_at(const fs::path& file) {
  const auto status = system_.status(file);
  if (!status) return {};
  if (!S_ISREG(status->st_mode)) {  // no lease, whoever put it there
    system_.remove_all(file);
    return {};
  }
  Lease lease{.step = step_of(file.filename().string()), .user = status->st_uid};
  const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (!fd) return {};
  if (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, file)) return lease;
  system_.unlink_if_there(file);  // another process may have found it as well
  return {};
}

void Store::touch(const std::string& name) noexcept {
  set_time(objects_ / name / kDescription, now());
}

Time Store::last_use(const std::string& name) const {
  std::optional<struct stat> used;
  if (is_folder(system_, objects_ / name)) used = system_.status(objects_ / name / kDescription);
  if (!used) used = system_.status(objects_ / name);  // not an object: somebody has put it there
  if (!used) fail("object {} is not in the cache {}", name, folder_.string());
  const auto leases = system_.status(folder_ / "leases" / name);
  const Time last = std::max(modified(*used), leases ? modified(*leases) : Time());
  // Of a clock that was wrong: until that day comes it would always have been used just now.
  if (last > now() + options_.keep) return {};
  return std::min(now(), last);
}

}  // namespace lockstep::cache
