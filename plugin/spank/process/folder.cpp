#include "plugin/spank/process/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "common/leaf/error.h"
#include "common/leaf/split.h"

namespace lockstep::spank {
namespace {

constexpr int kOpen = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// Walking through a folder needs no permission to list it.
constexpr int kPass = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMaxDepth = 64;

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  const int error = errno;
  if (error == ELOOP || error == ENOTDIR) {
    throw Error("cannot " + what + " " + path + ": it is a link or not a folder; give the real path");
  }
  throw Error("cannot " + what + " " + path + ": " + errno_text(error));
}

std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> names;
  for (const std::string_view name : split(path, '/')) {
    if (!name.empty()) names.emplace_back(name);
  }
  return names;
}

std::vector<std::string> entries(int fd) {
  std::vector<std::string> names;
  UniqueFd copy(::openat(fd, ".", kOpen));
  DIR* const open = copy ? ::fdopendir(copy.get()) : nullptr;
  if (open == nullptr) return names;
  copy.release();  // closedir() closes it
  while (const dirent* entry =
             ::readdir(open)) {  // NOLINT(concurrency-mt-unsafe): no other thread has this stream
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(open);
  return names;
}

bool is_mount_point(int folder) {
#ifdef STATX_ATTR_MOUNT_ROOT
  struct statx about {};
  if (::statx(folder, "", AT_EMPTY_PATH, 0, &about) == 0 &&
      (about.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (about.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
#endif
  // Kernels before 5.8 do not tell; there, a mount of a folder of the same disk goes unnoticed.
  struct stat own {};
  struct stat above {};
  return ::fstat(folder, &own) == 0 && ::fstatat(folder, "..", &above, 0) == 0 && own.st_dev != above.st_dev;
}

// A user's umask or chmod may have removed the user's own access to the folder.
UniqueFd open_closed(int parent, const std::string& name) {
  UniqueFd fd(::openat(parent, name.c_str(), kOpen));
  if (fd || errno != EACCES) return fd;
  const UniqueFd closed(::openat(parent, name.c_str(), kPass));
  if (!closed || ::chmod(("/proc/self/fd/" + std::to_string(closed.get())).c_str(), S_IRWXU) != 0) return {};
  return UniqueFd(::openat(parent, name.c_str(), kOpen));
}

void remove_tree(int parent, const std::string& name, const std::string& path, int depth) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR && errno != EPERM) refuse("remove", path);
  if (depth > kMaxDepth) throw Error("cannot remove " + path + ": folders nested too deeply");
  const UniqueFd fd = open_closed(parent, name);
  if (!fd) refuse("remove", path);
  ::fchmod(fd.get(), S_IRWXU);  // the mode may forbid the removal of names; a failure shows below
  for (const std::string& entry : entries(fd.get())) {
    std::string whole = path;
    remove_tree(fd.get(), entry, whole.append("/").append(entry), depth + 1);
  }
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) refuse("remove", path);
}

}  // namespace

Folder Folder::walk(const std::string& path, Make make) {
  Folder folder(UniqueFd(::open("/", kPass)), "");
  if (!folder.fd_) refuse("open", "/");
  std::size_t left = components(path).size();
  for (const std::string& name : components(path)) {
    if (name == "." || name == "..") throw Error("cannot open " + path + ": give the real path");
    const std::string whole = folder.path_ + "/" + name;
    const bool last = --left == 0;
    if ((make == Make::all || (make == Make::last && last)) &&
        ::mkdirat(folder.fd(), name.c_str(), 0755) != 0 && errno != EEXIST)
      refuse("make", whole);
    UniqueFd next(::openat(folder.fd(), name.c_str(), kPass));
    if (!next) refuse("open", whole);
    folder.fd_ = std::move(next);
    folder.path_ = whole;
  }
  return folder;
}

Folder Folder::open_path(const std::string& path) {
  return walk(path, Make::none);
}

Folder Folder::open_root(const std::string& path, bool make) {
  return checked(walk(path, make ? Make::all : Make::none));
}

Folder Folder::open_cache(const std::string& path, bool must_be_mount) {
  const std::size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  const std::string parent = slash == std::string::npos ? "" : path.substr(0, slash);
  struct stat about {};
  if (!parent.empty() && ::lstat(parent.c_str(), &about) != 0 && errno == ENOENT) {
    throw Error("the cache " + path + " cannot be made, because this node has no folder " + parent +
                ": mount the node's local disk, or correct 'cache' in lockstep.conf");
  }
  const auto is_mounted = [](const std::string& folder) {
    const UniqueFd fd(::open(folder.c_str(), kPass));
    return fd && is_mount_point(fd.get());
  };
  if (must_be_mount && !is_mounted(path) && (parent.empty() || !is_mounted(parent))) {
    throw Error("no disk is mounted at " + path + " or " + (parent.empty() ? "/" : parent) +
                ", but lockstep.conf says cache_must_be_mount = yes: mount the node's local disk");
  }
  return checked(walk(path, Make::last));
}

Folder Folder::checked(Folder folder) {
  const std::string& path = folder.path_;
  struct stat about {};
  if (::fstat(folder.fd(), &about) != 0) refuse("read the owner and mode of", path);
  if (about.st_uid != 0) {
    throw Error(path + " must belong to root; it belongs to user " + std::to_string(about.st_uid) +
                ": remove it, and let the system make it at boot (tmpfiles.d)");
  }
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", about.st_mode & 07777U);
    throw Error(path + " must be writable by root alone, and its mode is " + mode.data() + ": chmod 755 " +
                path);
  }
  return folder;
}

Folder Folder::open(const std::string& name) const {
  Folder folder(open_closed(fd(), name), path_ + "/" + name);
  if (!folder.fd_) refuse("open", folder.path_);
  return folder;
}

Folder Folder::own(const std::string& name, uid_t uid, gid_t gid, mode_t mode) const {
  if (::mkdirat(fd(), name.c_str(), 0700) != 0 && errno != EEXIST) refuse("make", path_ + "/" + name);
  Folder folder(open_closed(fd(), name), path_ + "/" + name);
  if (!folder.fd_) refuse("open", folder.path_);
  struct stat about {};
  if (::fstat(folder.fd(), &about) != 0) refuse("read the owner of", folder.path_);
  // A folder of root's was just made, by this call or by another one at the same time.
  if (about.st_uid != uid && about.st_uid != 0) {
    throw Error(folder.path_ + " belongs to user " + std::to_string(about.st_uid) + ", not to user " +
                std::to_string(uid));
  }
  if (about.st_uid != uid || about.st_gid != gid) {
    if (::fchown(folder.fd(), uid, gid) != 0) refuse("change the owner of", folder.path_);
  }
  if (::fchmod(folder.fd(), mode) != 0) refuse("set the mode of", folder.path_);
  return folder;
}

std::vector<std::string> Folder::names() const {
  return entries(fd());
}

void Folder::remove(const std::string& name) const {
  remove_tree(fd(), name, path_ + "/" + name, 0);
}

}  // namespace lockstep::spank
