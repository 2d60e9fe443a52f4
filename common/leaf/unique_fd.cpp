#include "common/leaf/unique_fd.h"

#include <unistd.h>

#include <cerrno>

namespace lockstep {

void UniqueFd::reset(int fd) {
  const int error = errno;
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
  errno = error;
}

}  // namespace lockstep
