// Starts the threads of the library in the user's program.
//
// Threads: safe from any.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace lockstep {

/// Starts a thread that gets no signals, since the program may wait for signals in one of its own threads
/// (sigwait, for Slurm's --signal).
template <typename Body>
std::thread start_thread(Body body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace lockstep
