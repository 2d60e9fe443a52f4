#include "staging/cache/shared.h"

#include <fcntl.h>
#include <unistd.h>

#include "common/error.h"
#include "common/files.h"
#include "staging/cache/layout.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

void check_trusted(FileSystem& system, const fs::path& folder) {
  const auto status = system.status(folder);
  if (!status || !S_ISDIR(status->st_mode)) fail("{} is not a folder", folder.string());
  // It must be root's, or this user's own where only one user runs Lockstep.
  const bool ours = status->st_uid == 0 || status->st_uid == ::geteuid();
  if (!ours || (status->st_mode & 022) != 0) {
    fail(
        "the shared store {} is not used: it belongs to user {} with mode {:o}, but must be root's with mode 0755",
        folder.string(), status->st_uid, status->st_mode & 07777U);
  }
}

/// The readers of an object, expressed as modes and group of its files.
struct Readers {
  std::optional<gid_t> group;

  mode_t top() const { return group ? 0750 : 0755; }
  mode_t of(const struct stat& status) const {
    if (S_ISDIR(status.st_mode) || (status.st_mode & S_IXUSR) != 0) return group ? 0550 : 0555;
    return group ? 0440 : 0444;
  }
  bool are_right(const struct stat& status, mode_t mode) const {
    return (status.st_mode & 07777U) == mode && (!group || status.st_gid == *group);
  }
};

bool all_right_below(FileSystem& system, const fs::path& folder, const Readers& readers) {
  for (const std::string& name : system.list(folder)) {
    const auto status = system.status(folder / name);
    if (!status || !readers.are_right(*status, readers.of(*status))) return false;
    if (S_ISDIR(status->st_mode) && !all_right_below(system, folder / name, readers)) return false;
  }
  return true;
}

/// Changes everything below an object's folder.
void open_below(FileSystem& system, const fs::path& folder, const Readers& readers) {
  for (const std::string& name : system.list(folder)) {
    const fs::path path = folder / name;
    const auto status = system.status(path);
    if (!status) continue;
    if (S_ISDIR(status->st_mode)) open_below(system, path, readers);
    if (readers.group) system.change_group(path, *readers.group);
    system.change_mode(path, readers.of(*status));
  }
}

}  // namespace

Shared::Shared(fs::path folder, FileSystem& system)
    : system_(&system), folder_(std::move(folder)), objects_(folder_ / "objects") {
}

std::optional<Shared> Shared::open(const fs::path& folder, FileSystem& system) {
  if (!system.status(folder) || !system.status(folder / "objects")) return {};
  for (const fs::path& checked : {folder, folder / "objects", folder / "locks", folder / "leases"})
    check_trusted(system, checked);
  return Shared(folder, system);
}

std::optional<ObjectLock> Shared::find(const std::string& name) const {
  // Never wait: a user could lock the folder exclusively, for ever.
  const fs::path file = folder_ / "leases" / name;
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || !system_->lock(fd.get(), FileSystem::LockKind::shared, false, file)) return {};
  struct stat locked {};
  const auto named = system_->status(file);
  if (::fstat(fd.get(), &locked) != 0 || !named || named->st_ino != locked.st_ino) return {};
  // Objects that only another group may read, or that are not published, do not exist for this user.
  const std::string object = objects_ / name;
  if (::faccessat(AT_FDCWD, (object + "/object.json").c_str(), R_OK, AT_EACCESS) != 0) return {};
  if (::faccessat(AT_FDCWD, (object + "/files").c_str(), R_OK | X_OK, AT_EACCESS) != 0) return {};
  return ObjectLock(std::move(fd));
}

ObjectInfo Shared::info(const std::string& name, bool brief) const {
  return read_object(objects_ / name / kDescription, name, brief);
}

void Shared::add_lease(const std::string& name, const fs::path& held_file) const {
  const fs::path leases = folder_ / "leases" / name;
  if (!system_->status(leases))
    throw NoLease(fmt::format("{} does not exist; run lockstep-stage prefetch again", leases.string()));
  link_lease(*system_, held_file, leases);
}

void share(const fs::path& store, const std::string& name, std::optional<gid_t> group, FileSystem& system) {
  Store opened(store, system);
  const ObjectLock lock = opened.lock(name, FileSystem::LockKind::exclusive);
  if (!opened.has(name))
    fail("object {} is no longer in the cache {}; prefetch it again", name, store.string());
  const auto set_mode = [&](const fs::path& path, mode_t mode) {
    const auto status = system.status(path);
    if (!status || (status->st_mode & 07777U) != mode) system.change_mode(path, mode);
  };
  for (const fs::path& folder : {store, store / "objects", store / "locks", store / "leases"})
    set_mode(folder, 0755);
  const fs::path leases = store / "leases" / name;
  system.make_folder(leases, 01777);
  set_mode(leases, 01777);
  // Processes that change objects wait for this lock, so no user may be able to take it.
  set_mode(store / "locks" / name, 0600);
  const Readers readers{group};
  const fs::path object = store / "objects" / name;
  const auto status = system.status(object);
  if (status && readers.are_right(*status, readers.top()) && all_right_below(system, object, readers)) return;
  // Nobody can read the object while its permissions change, so no step may be using it.
  const std::optional<ObjectLock> alone = opened.lock_readers(name);
  if (!alone || opened.leased(name)) {
    fail(
        "cannot change the permissions of object {} while running steps use it; lockstep-stage ls --cache {} lists them",
        name, store.string());
  }
  system.change_mode(object, 0700);
  open_below(system, object, readers);
  if (group) system.change_group(object, *group);
  system.change_mode(object, readers.top());
}

}  // namespace lockstep::cache
