#include "staging/cache/shared.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/error.h"
#include "common/files.h"
#include "staging/cache/layout.h"
#include "staging/cache/lease.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

void check_trusted(FileSystem& system, const fs::path& folder) {
  const auto status = system.status(folder);
  if (!status || !S_ISDIR(status->st_mode)) fail("{} is not a folder", folder.string());
  // Root's, or this user's own where somebody uses Lockstep by himself.
  const bool ours = status->st_uid == 0 || status->st_uid == ::geteuid();
  if (!ours || (status->st_mode & 022) != 0) {
    fail("the shared store {} is not used: it belongs to user {} with mode {:o}, and must be root's, 0755",
         folder.string(), status->st_uid, status->st_mode & 07777U);
  }
}

/// Who reads an object, as modes and group of what is in it.
struct Readers {
  std::optional<gid_t> group;

  mode_t top() const { return group ? 0750 : 0755; }
  mode_t of(const struct stat& status) const {
    if (S_ISDIR(status.st_mode)) return group ? 0550 : 0555;
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

/// Everything below an object's folder.
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

std::optional<Hold> Shared::find(const std::string& name) const {
  // A user could lock the folder exclusively, for ever: who does not get it at once goes without.
  const fs::path file = folder_ / "leases" / name;
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd || !system_->lock(fd.get(), FileSystem::LockKind::shared, false, file)) return {};
  struct stat locked {};
  const auto named = system_->status(file);
  if (::fstat(fd.get(), &locked) != 0 || !named || named->st_ino != locked.st_ino) return {};
  // What another group may read, or is not published, is not there for this user.
  const std::string object = objects_ / name;
  if (::faccessat(AT_FDCWD, (object + "/object.json").c_str(), R_OK, AT_EACCESS) != 0) return {};
  if (::faccessat(AT_FDCWD, (object + "/files").c_str(), R_OK | X_OK, AT_EACCESS) != 0) return {};
  return Hold(std::move(fd));
}

ObjectInfo Shared::info(const std::string& name, bool brief) const {
  return read_object(objects_ / name / kDescription, name, brief);
}

void Shared::hold(const std::string& name, const fs::path& held_file) const {
  const fs::path leases = folder_ / "leases" / name;
  if (!system_->status(leases))
    throw NoLease(fmt::format("{} is missing; run lockstep-stage prefetch again", leases.string()));
  link_lease(*system_, held_file, leases);
}

void share(const fs::path& store, const std::string& name, std::optional<gid_t> group, FileSystem& system) {
  Store opened(store, system);
  const Hold lock = opened.lock(name, FileSystem::LockKind::exclusive);
  if (!opened.has(name))
    fail("object {} is not in the cache {} any more; prefetch it again", name, store.string());
  const auto set_mode = [&](const fs::path& path, mode_t mode) {
    const auto status = system.status(path);
    if (!status || (status->st_mode & 07777U) != mode) system.change_mode(path, mode);
  };
  for (const fs::path& folder : {store, store / "objects", store / "locks", store / "leases"})
    set_mode(folder, 0755);
  const fs::path leases = store / "leases" / name;
  system.make_folder(leases, 01777);
  set_mode(leases, 01777);
  // Who changes objects waits for this one: no user may be able to lock it.
  set_mode(store / "locks" / name, 0600);
  const Readers readers{group};
  const fs::path object = store / "objects" / name;
  const auto status = system.status(object);
  if (status && readers.are_right(*status, readers.top()) && all_right_below(system, object, readers)) return;
  // Closed while its readers change, opened last. Who reads it already would be cut off.
  const std::optional<Hold> alone = opened.lock_readers(name);
  if (!alone || opened.leased(name)) {
    fail(
        "object {} is in use; who may read it can be changed when the steps that use it have ended (see "
        "lockstep-stage ls --cache {})",
        name, store.string());
  }
  system.change_mode(object, 0700);
  open_below(system, object, readers);
  if (group) system.change_group(object, *group);
  system.change_mode(object, readers.top());
}

}  // namespace lockstep::cache
