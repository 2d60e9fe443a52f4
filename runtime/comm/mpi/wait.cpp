#include "runtime/comm/mpi/wait.h"

#include <array>
#include <chrono>
#include <thread>

#include "runtime/comm/mpi/session.h"

namespace lockstep::comm::mpi {
namespace {

using Clock = std::chrono::steady_clock;

// Polls for this long without sleeping: a small message has arrived by then.
constexpr std::chrono::microseconds kPollTime{10};
// Short compared with the time in which socket buffers fill, long compared with a poll.
constexpr std::chrono::microseconds kSleep{20};

}  // namespace

void wait(std::span<MPI_Request> requests, const char* call) {
  const auto sleep_at = Clock::now() + kPollTime;
  for (;;) {
    int done = 0;
    check(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE), call);
    if (done != 0) return;
    if (Clock::now() > sleep_at) std::this_thread::sleep_for(kSleep);
  }
}

void exchange(const void* send, std::size_t send_bytes, int to, void* receive, std::size_t receive_bytes,
              int from, int tag, MPI_Comm comm) {
  std::array<MPI_Request, 2> requests{};
  check(MPI_Irecv(receive, static_cast<int>(receive_bytes), MPI_BYTE, from, tag, comm, &requests[0]),
        "MPI_Irecv");
  check(MPI_Isend(send, static_cast<int>(send_bytes), MPI_BYTE, to, tag, comm, &requests[1]), "MPI_Isend");
  wait(requests, "MPI_Isend, MPI_Irecv");
}

}  // namespace lockstep::comm::mpi
