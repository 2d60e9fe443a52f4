#include "plugin/spank/process/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#if __has_include(<linux/openat2.h>)
#include <linux/openat2.h>
#endif

#include <array>
#include <cerrno>
#include <cstdio>
#include <ctime>
#include <utility>
#include <vector>

#include "common/leaf/error.h"
#include "common/leaf/text.h"

namespace lockstep::spank {
namespace {

constexpr int kOpen = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// Walking through a folder needs no permission to list it.
constexpr int kPass = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMaxDepth = 64;
// A process that checks a lock holds it for a moment. The wait is short, because slurmstepd handles no signal meanwhile.
constexpr int kLockAttempts = 200;
constexpr timespec kLockPause{0, 10'000'000};

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  const int error = errno;
  if (error == ELOOP || error == ENOTDIR) {
    throw Error("cannot " + what + " " + path + ": it is a link or not a folder; give the real path");
  }
  throw Error("cannot " + what + " " + path + ": " + errno_text(error));
}

[[noreturn]] void refuse_lease(const std::string& path, const std::string& why) {
  throw Error("cannot take the lease " + path + ": " + why);
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

// A file system that a user has mounted in a folder may never answer.
void refuse_mount(int parent, const std::string& name, const std::string& path) {
#ifdef RESOLVE_NO_XDEV
  open_how how{};
  how.flags = kPass;
  how.resolve = RESOLVE_NO_XDEV;
  const UniqueFd fd(static_cast<int>(::syscall(SYS_openat2, parent, name.c_str(), &how, sizeof how)));
  if (!fd && errno == EXDEV) throw Error("cannot remove " + path + ": a file system is mounted there");
#endif
}

// Removes a folder with its contents. A user may nest folders deeper than this process may have files open, so what lies too
// deep moves up into the folder itself.
class TreeRemoval {
 public:
  void remove(int parent, const std::string& name, const std::string& path, int depth = 0) {
    if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
    if (errno != EISDIR && errno != EPERM) refuse("remove", path);
    refuse_mount(parent, name, path);
    const UniqueFd fd = open_closed(parent, name);
    if (!fd) refuse("remove", path);
    ::fchmod(fd.get(), S_IRWXU);  // the mode may forbid the removal of names; a failure shows below
    if (depth == kMaxDepth) return move_up(parent, name, path);
    if (depth == 0) top_ = fd.get();
    unsigned before = 0;
    do {
      before = moved_;
      for (const std::string& entry : entries(fd.get())) {
        std::string whole = path;
        remove(fd.get(), entry, whole.append("/").append(entry), depth + 1);
      }
    } while (depth == 0 && moved_ > before);
    if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) refuse("remove", path);
  }

 private:
  void move_up(int parent, const std::string& name, const std::string& path) {
    constexpr unsigned kMaxNames = 1U << 20U;
    while (++moved_ < kMaxNames) {
      if (::renameat(parent, name.c_str(), top_, (".moved-" + std::to_string(moved_)).c_str()) == 0) return;
      if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
        break;  // else the user has taken the name
    }
    refuse("remove", path);
  }

  int top_ = -1;
  unsigned moved_ = 0;
};

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

bool Folder::is_name_of(const std::string& name, int fd) const {
  struct stat named {};
  struct stat open {};
  return ::fstatat(this->fd(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

UniqueFd Folder::lock_shared(const std::string& name) const {
  const std::string path = path_ + "/" + name;
  for (int attempt = 0; attempt < kLockAttempts; ++attempt) {
    // O_NONBLOCK: opening a pipe in the file's place must not wait for the other end of the pipe.
    UniqueFd file(::openat(fd(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
    if (!file) refuse_lease(path, errno == ELOOP ? "it is a link" : errno_text(errno));
    struct stat about {};
    // Other processes of the user open the file too, so the job's umask must not decide its mode.
    if (::fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != ::geteuid() ||
        ::fchmod(file.get(), 0600) != 0) {
      refuse_lease(path, "it is not a regular file of user " + std::to_string(::geteuid()));
    }
    // Before the lock, another process may have removed the file as a stale one.
    errno = 0;
    if (::flock(file.get(), LOCK_SH | LOCK_NB) == 0 && is_name_of(name, file.get())) return file;
    const int error = errno;
    if (error != EWOULDBLOCK && error != EINTR && error != ENOENT && error != 0) {
      refuse_lease(path, errno_text(error));
    }
    ::nanosleep(&kLockPause, nullptr);
  }
  refuse_lease(path, "another process has locked it");
}

void Folder::remove(const std::string& name) const {
  TreeRemoval().remove(fd(), name, path_ + "/" + name);
}

}  // namespace lockstep::spank
