#include "runtime/comm/mpi/wait.h"

#include <sys/prctl.h>

#include <thread>

namespace lockstep::comm::mpi {

void nap(std::chrono::nanoseconds duration) {
  const int slack_ns = ::prctl(PR_GET_TIMERSLACK);
  ::prctl(PR_SET_TIMERSLACK, 1000);
  std::this_thread::sleep_for(duration);
  ::prctl(PR_SET_TIMERSLACK, slack_ns);
}

void wait_until(const std::function<bool()>& condition) {
  const auto sleep_at = std::chrono::steady_clock::now() + kSpin;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > sleep_at) nap(kNap);
  }
}

}  // namespace lockstep::comm::mpi
