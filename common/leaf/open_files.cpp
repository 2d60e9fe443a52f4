#include "common/leaf/open_files.h"

#include <sys/resource.h>

#include <cerrno>

namespace lockstep {

void raise_open_files_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // if the kernel refuses it, the old limit stays
}

bool no_descriptor_left(int error) {
  return error == EMFILE || error == ENFILE;
}

}  // namespace lockstep
