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
  // A user could lock the file exclusively, for ever: who does not get it at once goes without.
  const fs::path file = folder_ / "locks" / name;
  UniqueFd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
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
  const fs::path file = objects_ / name / kDescription;
  return parse_object(read_text_file(file), name, file.string(), brief);
}

void Shared::hold(const std::string& name, const fs::path& held_file) const {
  const fs::path leases = folder_ / "leases" / name;
  if (!system_->status(leases)) fail("{} is missing; run lockstep-stage prefetch again", leases.string());
  link_lease(*system_, held_file, leases);
}

}  // namespace lockstep::cache
