// Runs the writing of checkpoints one after the other in the background.
//
// Threads: one thread uses it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <future>

namespace lockstep::checkpoint {

class Background {
 public:
  /// `work` calls its argument when it no longer needs the memory that it was given.
  using Work = std::function<void(const std::function<void()>& released)>;

  void start(Work work);
  /// Waits at most for this time; returns whether the last work has released its memory, and at most one is not done.
  bool wait_for_memory(std::chrono::milliseconds time);
  /// Waits at most for this time; returns whether all is done.
  bool wait_for_all(std::chrono::milliseconds time);
  void wait_for_all() {
    for (const Job& job : jobs_) job.done.wait();
  }
  /// Throws the first exception of work that is done; each is thrown once.
  void rethrow();

 private:
  struct Job {
    std::shared_future<void> released;
    std::shared_future<void> done;
  };
  std::deque<Job> jobs_;
};

}  // namespace lockstep::checkpoint
