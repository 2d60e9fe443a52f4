#include "plugin/spank/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>
#include <vector>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

constexpr int kOpen = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
// Passing through a folder needs no permission to list it.
constexpr int kPass = O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kDeepest = 64;

[[noreturn]] void refuse(const std::string& what, const std::string& path) {
  const int error = errno;
  if (error == ELOOP || error == ENOTDIR) {
    throw Refusal("cannot " + what + " " + path + ": it is a link or no folder; give the real path");
  }
  throw Refusal("cannot " + what + " " + path + ": " + errno_text(error));
}

std::vector<std::string> components(const std::string& path) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    if (end > begin) names.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

std::vector<std::string> entries(int fd) {
  std::vector<std::string> names;
  const int copy = ::openat(fd, ".", kOpen);
  DIR* const open = copy < 0 ? nullptr : ::fdopendir(copy);
  if (open == nullptr) {
    if (copy >= 0) ::close(copy);
    return names;
  }
  while (const dirent* entry = ::readdir(open)) {  // NOLINT(concurrency-mt-unsafe): a stream of our own
    const std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(name);
  }
  ::closedir(open);
  return names;
}

// The user's umask or chmod may have closed a folder of his to himself.
int open_closed(int parent, const std::string& name) {
  const int fd = ::openat(parent, name.c_str(), kOpen);
  if (fd >= 0 || errno != EACCES) return fd;
  const int closed = ::openat(parent, name.c_str(), kPass);
  if (closed < 0) return closed;
  const int changed = ::chmod(("/proc/self/fd/" + std::to_string(closed)).c_str(), S_IRWXU);
  const int error = errno;
  ::close(closed);
  errno = error;
  return changed != 0 ? -1 : ::openat(parent, name.c_str(), kOpen);
}

void remove_tree(int parent, const std::string& name, const std::string& path, int depth) {
  if (::unlinkat(parent, name.c_str(), 0) == 0 || errno == ENOENT) return;
  if (errno != EISDIR && errno != EPERM) refuse("remove", path);
  if (depth > kDeepest) throw Refusal("cannot remove " + path + ": folders nested too deeply");
  const int fd = open_closed(parent, name);
  if (fd < 0) refuse("remove", path);
  ::fchmod(fd, S_IRWXU);  // where names may not be removed; what still cannot be says so
  try {
    for (const std::string& entry : entries(fd)) {
      std::string whole = path;
      remove_tree(fd, entry, whole.append("/").append(entry), depth + 1);
    }
  } catch (...) {
    ::close(fd);
    throw;
  }
  ::close(fd);
  if (::unlinkat(parent, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT) refuse("remove", path);
}

}  // namespace

Folder Folder::walk(const std::string& path, bool make) {
  Folder folder(::open("/", kPass), "");
  if (folder.fd_ < 0) refuse("open", "/");
  for (const std::string& name : components(path)) {
    if (name == "." || name == "..") throw Refusal("cannot open " + path + ": give the real path");
    const std::string whole = folder.path_ + "/" + name;
    // The mode is set by name of the new folder only: umask is the daemon's.
    if (make && ::mkdirat(folder.fd_, name.c_str(), 0755) != 0 && errno != EEXIST) refuse("make", whole);
    const int next = ::openat(folder.fd_, name.c_str(), kPass);
    if (next < 0) refuse("open", whole);
    ::close(std::exchange(folder.fd_, next));
    folder.path_ = whole;
  }
  return folder;
}

Folder Folder::open_path(const std::string& path) {
  return walk(path, false);
}

Folder Folder::open_root(const std::string& path, bool make) {
  Folder folder = walk(path, make);
  struct stat about {};
  if (::fstat(folder.fd_, &about) != 0) refuse("look at", path);
  if (about.st_uid != 0) {
    throw Refusal(path + " must belong to root; it belongs to user " + std::to_string(about.st_uid) +
                  ": remove it, and let the system make it as it starts (tmpfiles.d)");
  }
  if ((about.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    std::array<char, 8> mode{};
    std::snprintf(mode.data(), mode.size(), "%04o", about.st_mode & 07777U);
    throw Refusal(path + " must be writable by root alone, and its mode is " + mode.data() + ": chmod 755 " +
                  path);
  }
  return folder;
}

Folder::~Folder() {
  if (fd_ >= 0) ::close(fd_);
}

Folder Folder::open(const std::string& name) const {
  Folder folder(open_closed(fd_, name), path_ + "/" + name);
  if (folder.fd_ < 0) refuse("open", folder.path_);
  return folder;
}

Folder Folder::own(const std::string& name, uid_t uid, gid_t gid, mode_t mode) const {
  if (::mkdirat(fd_, name.c_str(), 0700) != 0 && errno != EEXIST) refuse("make", path_ + "/" + name);
  Folder folder(open_closed(fd_, name), path_ + "/" + name);
  if (folder.fd_ < 0) refuse("open", folder.path_);
  struct stat about {};
  if (::fstat(folder.fd_, &about) != 0) refuse("look at", folder.path_);
  // Root's own here is one that this call, or one running beside it, has just made.
  if (about.st_uid != uid && about.st_uid != 0) {
    throw Refusal(folder.path_ + " belongs to user " + std::to_string(about.st_uid) + ", not to user " +
                  std::to_string(uid));
  }
  if (about.st_uid != uid || about.st_gid != gid) {
    if (::fchown(folder.fd_, uid, gid) != 0) refuse("hand over", folder.path_);
  }
  if (::fchmod(folder.fd_, mode) != 0) refuse("set the mode of", folder.path_);
  return folder;
}

void Folder::own_file(const std::string& name, uid_t uid, mode_t mode) const {
  const std::string path = path_ + "/" + name;
  const int fd = ::openat(fd_, name.c_str(), O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
  if (fd < 0) refuse("make", path);
  struct stat about {};
  const bool regular = ::fstat(fd, &about) == 0 && S_ISREG(about.st_mode);
  const bool done = regular && (about.st_uid == uid || ::fchown(fd, uid, static_cast<gid_t>(-1)) == 0) &&
                    ::fchmod(fd, mode) == 0;
  const int error = errno;
  ::close(fd);
  if (!regular) throw Refusal("cannot make " + path + ": something else is there");
  errno = error;
  if (!done) refuse("hand over", path);
}

std::vector<std::string> Folder::names() const {
  return entries(fd_);
}

void Folder::remove(const std::string& name) const {
  remove_tree(fd_, name, path_ + "/" + name, 0);
}

}  // namespace lockstep::spank
