#include "runtime/comm/mpi/wait.h"

#include <sys/prctl.h>

#include <thread>

#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::mpi {

ShortNaps::ShortNaps() : slack_ns_(::prctl(PR_GET_TIMERSLACK)) {
  ::prctl(PR_SET_TIMERSLACK, 1000);
}

ShortNaps::~ShortNaps() {
  ::prctl(PR_SET_TIMERSLACK, slack_ns_);
}

void wait_until(const std::function<bool()>& condition) {
  const ShortNaps naps;
  const auto sleep_at = std::chrono::steady_clock::now() + kSpin;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > sleep_at) std::this_thread::sleep_for(kNap);
  }
}

void wait(std::span<MPI_Request> requests, const char* call) {
  wait_until([&] {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), call);
    return done != 0;
  });
}

}  // namespace lockstep::comm::mpi
