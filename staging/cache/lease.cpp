// Leases: a file that slurmstepd keeps locked, under a second name beside the object.

#include <fcntl.h>
#include <unistd.h>

#include <ctime>

#include "common/error.h"
#include "staging/cache/layout.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

namespace fs = std::filesystem;

namespace {

struct stat status_of(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) != 0) fail_errno("cannot stat an open file");
  return status;
}

}  // namespace

void Store::hold(const std::string& name, const fs::path& held_file) {
  if (!has(name)) fail("object {} is not in the cache {}; put its source again", name, folder_.string());
  // Read-only: any descriptor can carry a lock, and nothing is ever written to these files.
  const UniqueFd held = system_.open(held_file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
  if (system_.lock(held.get(), FileSystem::LockKind::exclusive, false, held_file)) {
    fail("{}: nobody holds this lease file; the step's slurmstepd opens and locks it", held_file.string());
  }
  const fs::path leases = folder_ / "leases" / name;
  system_.make_folder(leases, 0700);
  const fs::path lease = leases / held_file.filename();
  if (const auto there = system_.status(lease)) {
    const struct stat wanted = status_of(held.get());
    if (there->st_ino == wanted.st_ino && there->st_dev == wanted.st_dev) return;
    system_.remove_all(lease);  // of a step of this name before the node was started anew
  }
  system_.link(held_file, lease);
  touch(name);
}

std::vector<Lease> Store::leases(const std::string& name) {
  const fs::path folder = folder_ / "leases" / name;
  std::vector<Lease> alive;
  const auto status = system_.status(folder);
  if (!status || !S_ISDIR(status->st_mode)) return alive;
  for (const std::string& step : system_.list(folder)) {
    const fs::path file = folder / step;
    const std::optional<UniqueFd> fd = system_.open_if_there(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK);
    if (!fd) continue;
    const struct stat opened = status_of(fd->get());
    if (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, file)) {
      alive.push_back({.step = step, .user = opened.st_uid});
    } else {
      system_.unlink(file);
    }
  }
  return alive;
}

void Store::touch(const std::string& name) noexcept {
  ::utimensat(AT_FDCWD, (objects_ / name / kDescription).c_str(), nullptr, AT_SYMLINK_NOFOLLOW);
}

std::int64_t Store::last_use(const std::string& name) const {
  const auto status = system_.status(objects_ / name / kDescription);
  if (!status) fail("object {} is not in the cache {}", name, folder_.string());
  return std::min<std::int64_t>(status->st_mtim.tv_sec, std::time(nullptr));
}

}  // namespace lockstep::cache
