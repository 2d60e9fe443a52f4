#include "tests/cluster/embedded/metered_fs/inode_table.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace lockstep::metered_fs {
namespace {

union Handle {
  file_handle head;
  char bytes[sizeof(file_handle) + MAX_HANDLE_SZ];
};

// Empty if the file system has no handles.
std::string handle_of(int fd, int& mount) {
  Handle handle{};
  handle.head.handle_bytes = MAX_HANDLE_SZ;
  if (name_to_handle_at(fd, "", &handle.head, &mount, AT_EMPTY_PATH) != 0) return {};
  return {handle.bytes, sizeof(file_handle) + handle.head.handle_bytes};
}

}  // namespace

InodeTable::InodeTable(UniqueFd root) : root_(std::move(root)) {
  int mount = -1;
  const std::string handle = metered_fs::handle_of(root_.get(), mount);
  if (!handle.empty() && open_handle(handle)) mount_ = mount;
}

std::string InodeTable::handle_of(int fd) const {
  int mount = -1;
  std::string handle = mount_ < 0 ? std::string() : metered_fs::handle_of(fd, mount);
  return mount == mount_ ? handle : std::string();  // on another mount, root_ cannot open it
}

UniqueFd InodeTable::open_handle(const std::string& handle) const {
  Handle copy{};
  std::memcpy(copy.bytes, handle.data(), handle.size());
  return UniqueFd(open_by_handle_at(root_.get(), &copy.head, O_PATH | O_NOFOLLOW | O_CLOEXEC));
}

InodeFd InodeTable::open(fuse_ino_t number) const {
  if (number == FUSE_ROOT_ID) return InodeFd(root_.get());
  const auto* inode =
      reinterpret_cast<const Inode*>(number);  // NOLINT(performance-no-int-to-ptr): lookup's entry.ino
  return inode->fd ? InodeFd(inode->fd.get()) : InodeFd(open_handle(inode->handle));
}

int InodeTable::lookup(fuse_ino_t parent, const char* name, fuse_entry_param& entry) {
  entry = {};  // timeouts of 0: each machine sees changes of the others at once
  UniqueFd found(openat(open(parent).get(), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) return errno;
  if (fstatat(found.get(), "", &entry.attr, AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW) != 0) return errno;

  // A handle differs from that of an earlier file with the same number. Without handles the earlier file is
  // still open, so its number is in use.
  const std::string handle = handle_of(found.get());
  const std::string key =
      handle.empty() ? fmt::format("{}:{}", entry.attr.st_dev, entry.attr.st_ino) : handle;
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Inode>& inode = inodes_[key];
  if (!inode) {
    if (!handle.empty()) found.reset();
    inode = std::make_unique<Inode>(Inode{std::move(found), handle, key});
  }
  ++inode->lookups;
  entry.ino = reinterpret_cast<fuse_ino_t>(inode.get());
  return 0;
}

void InodeTable::forget(fuse_ino_t number, std::uint64_t lookups) {
  if (number == FUSE_ROOT_ID) return;
  const std::lock_guard lock(mutex_);
  auto* inode = reinterpret_cast<Inode*>(number);  // NOLINT(performance-no-int-to-ptr): lookup's entry.ino
  inode->lookups -= std::min(lookups, inode->lookups);
  if (inode->lookups == 0) inodes_.erase(std::string(inode->key));
}

}  // namespace lockstep::metered_fs
