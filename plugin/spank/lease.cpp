#include "plugin/spank/lease.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

// Whoever looks whether a lease is still held locks it exclusively for a moment; that is waited for, but
// slurmstepd answers no signal meanwhile.
constexpr int kAttempts = 200;
constexpr timespec kPause{0, 10'000'000};

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Refusal("cannot take the lease " + path + ": " + why);
}

bool still_named(const Folder& folder, const std::string& name, int fd) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(folder.fd(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

int open_file(const Folder& folder, const std::string& name) {
  const std::string path = folder.path() + "/" + name;
  // O_NONBLOCK: opening a pipe that somebody has put there must not wait for its other end.
  const int fd =
      ::openat(folder.fd(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
  if (fd < 0) refuse(path, errno == ELOOP ? "it is a link" : errno_text(errno));
  struct stat about {};
  // The mode whatever the job's umask: lockstep-stage opens it too.
  if (::fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == ::geteuid() &&
      ::fchmod(fd, 0600) == 0) {
    return fd;
  }
  ::close(fd);
  refuse(path, "it is not a file of user " + std::to_string(::geteuid()));
}

}  // namespace

Lease Lease::take(const std::string& store, const std::string& name) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  Folder held = Folder::open_path(store).own("leases", uid, gid, 0700).own("held", uid, gid, 0700);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    const int fd = open_file(held, name);
    // Between opening and locking it may have been removed as one that nobody holds.
    if (::flock(fd, LOCK_SH | LOCK_NB) == 0 && still_named(held, name, fd))
      return {std::move(held), name, fd};
    const int error = errno;
    ::close(fd);
    if (error != EWOULDBLOCK && error != EINTR && error != ENOENT && error != 0) {
      refuse(held.path() + "/" + name, errno_text(error));
    }
    ::nanosleep(&kPause, nullptr);
  }
  refuse(held.path() + "/" + name, "another process has locked it");
}

Lease::~Lease() {
  if (fd_ >= 0) ::close(fd_);
}

void Lease::remove_name() const {
  if (::flock(fd_, LOCK_EX | LOCK_NB) == 0 && still_named(folder_, name_, fd_)) {
    ::unlinkat(folder_.fd(), name_.c_str(), 0);
  }
}

}  // namespace lockstep::spank
