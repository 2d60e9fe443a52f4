#include "examples/cluster/metered_fs/inode_table.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

namespace lockstep::metered_fs {

int InodeTable::fd(fuse_ino_t number) const {
  if (number == FUSE_ROOT_ID) return root_.get();
  const auto* inode =
      reinterpret_cast<const Inode*>(number);  // NOLINT(performance-no-int-to-ptr): lookup's entry.ino
  return inode->fd.get();
}

int InodeTable::lookup(fuse_ino_t parent, const char* name, fuse_entry_param& entry) {
  entry = {};  // timeouts of 0: what one machine does is seen by the others at once
  UniqueFd found(openat(fd(parent), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) return errno;
  if (fstatat(found.get(), "", &entry.attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) return errno;

  const Identity identity(entry.attr.st_dev, entry.attr.st_ino);
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Inode>& inode = inodes_[identity];
  if (!inode) inode = std::make_unique<Inode>(Inode{std::move(found), identity});
  ++inode->lookups;
  entry.ino = reinterpret_cast<fuse_ino_t>(inode.get());
  return 0;
}

void InodeTable::forget(fuse_ino_t number, std::uint64_t lookups) {
  if (number == FUSE_ROOT_ID) return;
  const std::lock_guard lock(mutex_);
  auto* inode = reinterpret_cast<Inode*>(number);  // NOLINT(performance-no-int-to-ptr): lookup's entry.ino
  inode->lookups -= std::min(lookups, inode->lookups);
  if (inode->lookups == 0) inodes_.erase(Identity(inode->identity));
}

}  // namespace lockstep::metered_fs
