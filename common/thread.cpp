#include "common/thread.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "common/error.h"
#include "common/job_limits.h"
#include "common/units.h"

namespace lockstep {
namespace {

// The address space that a thread's stack takes.
std::uint64_t stack_bytes() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (::pthread_getattr_default_np(&attributes) != 0) return 0;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return bytes;
}

std::string limit_reached(const std::filesystem::path& proc, const std::filesystem::path& cgroups) {
  if (const std::string group = full_process_group(proc, cgroups); !group.empty())
    return group + ": raise it (systemd calls it TasksMax), or start fewer processes and threads";
  rlimit limit{};
  std::uint64_t pages = 0;
  std::ifstream(proc / "self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  constexpr std::uint64_t kGuard = 1U << 20U;  // a stack takes a little more
  if (::getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      used + stack_bytes() + kGuard > limit.rlim_cur) {
    return fmt::format(
        "this process may use {} of address space (ulimit -v), and each thread takes {} for its stack: raise the limit, or lower ulimit -s",
        format_bytes(limit.rlim_cur), format_bytes(stack_bytes()));
  }
  if (::getrlimit(RLIMIT_NPROC, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return fmt::format(
        "this user may run {} processes and threads on this node (ulimit -u): raise the limit, or end some of them",
        limit.rlim_cur);
  }
  return "the node has no memory left for it, or runs as many as the kernel allows (sysctl kernel.threads-max): end some processes";
}

}  // namespace

void fail_thread(int error, const std::filesystem::path& proc, const std::filesystem::path& cgroups) {
  throw SystemError(
      error, fmt::format("cannot start a thread ({}): {}", errno_text(error), limit_reached(proc, cgroups)));
}

}  // namespace lockstep
