#include "staging/transfer/supervisor.h"

#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <thread>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/descriptors.h"
#include "common/pending_calls.h"
#include "common/units.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using std::chrono::milliseconds;

void change_process_name() {
  constexpr std::string_view kName = "lockstep-watch";
  ::prctl(PR_SET_NAME, kName.data());
  // The arguments of the process are contiguous in memory and begin with the program's name.
  std::size_t length = 0;
  try {
    length = read_text_file("/proc/self/cmdline").size();
  } catch (const Error&) {
    // Keep the old name.
  }
  if (length <= kName.size()) return;
  std::memset(::program_invocation_name, 0, length);
  std::memcpy(::program_invocation_name, kName.data(), kName.size());
}

bool lies_in(const fs::path& path, const fs::path& folder) {
  if (folder.empty()) return false;
  const fs::path below = path.lexically_relative(fs::absolute(folder));
  return !below.empty() && *below.begin() != "..";
}

ChildEnd stuck_in(const PendingCalls::Overdue& call, const SuperviseOptions& options, pid_t child) {
  ChildEnd end;
  end.pid = child;
  end.disk = std::any_of(options.disk_folders.begin(), options.disk_folders.end(),
                         [&](const fs::path& folder) { return lies_in(call.path, folder); });
  const std::string time =
      format_seconds(std::chrono::duration<double>(call.times * options.call_timeout).count());
  end.stuck =
      end.disk ? fmt::format("no answer from {} for {}: check the disk and the kernel's log",
                             options.disk_name, time)
               : fmt::format("no answer from {} for {}: check that this node's mount of the source responds",
                             call.path.string(), time);
  return end;
}

}  // namespace

milliseconds default_call_timeout(std::size_t nodes) {
  return std::chrono::minutes(5) + std::chrono::seconds(nodes);
}

std::optional<ChildEnd> run_supervised(const SuperviseOptions& options) {
  PendingCalls calls;
  Pipe life;  // can be read when the child, which holds the other end, has ended
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child < 0) fail_errno("cannot start a process");
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    (void)life.write_end.release();
    calls.record_here();
    return {};
  }
  life.write_end.reset();
  change_process_name();
  constexpr int kLooks = 20;  // in each timeout
  const auto between_looks = std::max(options.call_timeout / kLooks, milliseconds(1));
  const int wait_ms = options.call_timeout.count() > 0 ? static_cast<int>(between_looks.count()) : -1;
  for (;;) {
    pollfd wait{life.read_end.get(), POLLIN, 0};
    const int ready = ::poll(&wait, 1, wait_ms);
    if (ready < 0) continue;
    if (ready == 0) {
      if (const auto call = calls.look(kLooks)) return stuck_in(*call, options, child);
      continue;
    }
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    ChildEnd end;
    end.code = WIFSIGNALED(status) ? ChildEnd::kSignalled + WTERMSIG(status) : WEXITSTATUS(status);
    return end;
  }
}

}  // namespace lockstep::transfer
