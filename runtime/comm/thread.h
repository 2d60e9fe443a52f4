// Threads of ours in somebody else's program.
//
// Threads: safe from any.
#pragma once

#include <csignal>
#include <thread>
#include <utility>

namespace lockstep::comm {

/// A thread that gets no signals: those are for the program's own threads, which may wait for them with all
/// others blocked (Slurm's --signal with sigwait).
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

}  // namespace lockstep::comm
