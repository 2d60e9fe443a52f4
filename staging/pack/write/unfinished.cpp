#include "staging/pack/write/unfinished.h"

#include <fcntl.h>

#include "common/error.h"

namespace lockstep::pack {

Unfinished::Unfinished(std::filesystem::path folder, const std::filesystem::path& what, FileSystem& system)
    : folder_(std::move(folder)), system_(system) {
  for (;;) {
    (void)system_.make_folder(folder_, 0755);
    std::optional<UniqueFd> fd = system_.open_if_there(folder_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!fd) continue;  // another call has just ended and removed it
    // The lock distinguishes a running call from a killed one.
    if (!system_.lock(fd->get(), FileSystem::LockKind::exclusive, false, folder_))
      fail("{} is being packed by another process", what.string());
    struct stat locked {};
    const std::optional<struct stat> named = system_.status(folder_);
    if (::fstat(fd->get(), &locked) == 0 && named && locked.st_ino == named->st_ino) {
      lock_ = std::move(*fd);
      return;
    }
  }
}

Unfinished::~Unfinished() {
  if (keep_) return;
  try {
    system_.remove_all(folder_);
  } catch (const Error&) {
    return;  // the error that ended the call is being reported, and the next call tries again
  }
}

}  // namespace lockstep::pack
