#include "staging/pack/write/unfinished.h"

#include <fcntl.h>

#include "common/error.h"

namespace lockstep::pack {

namespace fs = std::filesystem;

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

fs::path working_folder(Unfinished& unfinished, const fs::path& out, FileSystem& system) {
  if (system.status(unfinished.folder() / kJournal)) {
    unfinished.keep();
    fail("{}: an interrupted create has packed a part of it: run that command again, or remove {}",
         out.string(), unfinished.folder().string());
  }
  fs::path work = unfinished.folder() / "work";
  system.remove_all(work);
  (void)system.make_folder(work, 0755);
  return work;
}

void publish_pack(const fs::path& pack, const fs::path& out, FileSystem& system) {
  system.sync_folder(pack);
  system.rename(pack, out);
  system.sync_folder(out.parent_path());
}

}  // namespace lockstep::pack
