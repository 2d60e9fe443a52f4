#include "plugin/spank/staging/lease.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>

#include "common/leaf/error.h"

namespace lockstep::spank {
namespace {

// A process that checks the lease locks it exclusively for a moment. The wait is short, because slurmstepd handles no
// signal meanwhile.
constexpr int kAttempts = 200;
constexpr timespec kPause{0, 10'000'000};

[[noreturn]] void refuse_lease(const std::string& path, const std::string& why) {
  throw Error("cannot take the lease " + path + ": " + why);
}

bool still_named(const Folder& folder, const std::string& name, int fd) {
  struct stat named {};
  struct stat open {};
  return ::fstatat(folder.fd(), name.c_str(), &named, AT_SYMLINK_NOFOLLOW) == 0 && ::fstat(fd, &open) == 0 &&
         named.st_ino == open.st_ino && named.st_dev == open.st_dev;
}

UniqueFd open_file(const Folder& folder, const std::string& name) {
  const std::string path = folder.path() + "/" + name;
  // O_NONBLOCK: opening a pipe in the file's place must not wait for the other end of the pipe.
  UniqueFd fd(
      ::openat(folder.fd(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd) refuse_lease(path, errno == ELOOP ? "it is a link" : errno_text(errno));
  struct stat about {};
  // lockstep-stage opens the file too, so the job's umask must not decide its mode.
  if (::fstat(fd.get(), &about) == 0 && S_ISREG(about.st_mode) && about.st_uid == ::geteuid() &&
      ::fchmod(fd.get(), 0600) == 0) {
    return fd;
  }
  refuse_lease(path, "it is not a regular file of user " + std::to_string(::geteuid()));
}

}  // namespace

StepLease StepLease::take(const std::string& store, const std::string& name) {
  const uid_t uid = ::geteuid();
  const gid_t gid = ::getegid();
  Folder held = Folder::open_path(store).own("leases", uid, gid, 0700).own("held", uid, gid, 0700);
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    UniqueFd fd = open_file(held, name);
    // Before the lock, another process may have removed the file as a stale one.
    errno = 0;
    if (::flock(fd.get(), LOCK_SH | LOCK_NB) == 0 && still_named(held, name, fd.get()))
      return {std::move(held), name, std::move(fd)};
    const int error = errno;
    if (error != EWOULDBLOCK && error != EINTR && error != ENOENT && error != 0) {
      refuse_lease(held.path() + "/" + name, errno_text(error));
    }
    ::nanosleep(&kPause, nullptr);
  }
  refuse_lease(held.path() + "/" + name, "another process has locked it");
}

void StepLease::remove_name() const {
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) == 0 && still_named(folder_, name_, fd_.get())) {
    ::unlinkat(folder_.fd(), name_.c_str(), 0);
  }
}

}  // namespace lockstep::spank
