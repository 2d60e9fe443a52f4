// Work that SIGINT, SIGTERM and SIGHUP end cleanly.
//
// Threads: main's thread.
#pragma once

#include <atomic>
#include <csignal>
#include <cstdio>
#include <iterator>
#include <string>

#include "common/error.h"
#include "common/tool.h"
#include "staging/pack/write/create.h"

namespace lockstep::pack {

inline std::atomic<bool> stop{false};
inline std::atomic<int> signal_number{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

/// While this object lives, the first SIGINT, SIGTERM or SIGHUP sets `stop`. A second signal ends the process at once, also
/// while a thread is blocked by a file system that does not answer. The files on disk are as after a kill.
class StopOnSignals {
 public:
  StopOnSignals() {
    struct sigaction action {};
    action.sa_handler = [](int number) {
      signal_number = number;
      stop = true;
    };
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    for (std::size_t i = 0; i < std::size(kSignals); ++i) {
      ::sigaction(kSignals[i], nullptr, &before_[i]);
      if (before_[i].sa_handler != SIG_IGN)
        ::sigaction(kSignals[i], &action, nullptr);  // keep nohup's SIG_IGN
    }
  }
  ~StopOnSignals() {
    for (std::size_t i = 0; i < std::size(kSignals); ++i) ::sigaction(kSignals[i], &before_[i], nullptr);
  }
  StopOnSignals(const StopOnSignals&) = delete;
  StopOnSignals& operator=(const StopOnSignals&) = delete;

 private:
  static constexpr int kSignals[] = {SIGINT, SIGTERM, SIGHUP};
  struct sigaction before_[std::size(kSignals)]{};
};

/// Runs `work(stop)`, which throws Stopped once `stop` is set. Then prints the message, and ends the process by the signal, so that
/// a loop of the shell ends too.
template <typename Work>
void run_until_stopped(const Tool& tool, const Work& work) {
  const StopOnSignals signals;
  std::string stopped;
  try {
    return work(stop);
  } catch (const Stopped& error) {
    stopped = error.what();
  }
  tool.say(stopped);
  std::fflush(stderr);
  ::signal(signal_number, SIG_DFL);
  ::raise(signal_number);
  fail("{}", stopped);  // reached if the signal is blocked
}

}  // namespace lockstep::pack
