// The file work of this rank in the background, and how far it has come, so that slow storage is not taken for a hang: ranks
// wait for each other in short operations for as long as the bytes increase, and a rank whose file stands still ends the job
// with its name.
//
// Threads: FileProgress is safe from any; Background, wait_for_files() and run_with_files(): the training thread of all ranks.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>

#include "runtime/comm/communicator.h"

namespace lockstep::checkpoint {

class FileProgress {
 public:
  /// Work on a file begins: "writing /run/.step-000001/model.safetensors". `bytes`: its size; 0 if unknown.
  void begin(const std::string& what, std::uint64_t bytes = 0);
  void advance(std::uint64_t bytes);
  /// Work goes on, but not in bytes: it waits for another rank.
  void touch();

  /// Increases with each of the calls above.
  std::uint64_t changes() const;
  /// "writing FILE stands still at 12 MiB of 200 MiB"
  std::string stalled_text() const;

 private:
  mutable std::mutex mutex_;
  std::string what_ = "the files of checkpoints";
  std::uint64_t done_ = 0;
  std::uint64_t total_ = 0;
  std::uint64_t changes_ = 0;
};

/// Runs the writing of checkpoints, one after the other.
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

/// Returns on all ranks when `ended_within` has returned true on each of them. It waits at most for the given time and
/// returns whether this rank's file work has ended. Ends the job if the work of this rank does not change its progress
/// within LOCKSTEP_TIMEOUT.
void wait_for_files(comm::Communicator& communicator, const FileProgress& progress,
                    const std::function<bool(std::chrono::milliseconds)>& ended_within);

/// Runs `work` on every rank in a thread and waits for it as wait_for_files() does. Throws Error on all ranks, naming
/// the reason of the first rank that failed.
void run_with_files(comm::Communicator& communicator, const FileProgress& progress, const std::string& label,
                    const std::function<void()>& work);

}  // namespace lockstep::checkpoint
