// The lock of a folder of checkpoints: the file `.lock` in it, which names the process that writes there. Two trainings
// in one folder would remove each other's checkpoints.
//
// The holder changes the file every few seconds. A holder on this node is looked up among the processes; on another
// node it counts as dead when the file has not changed for a minute. A lock that is lost (the job was suspended, and
// another one took the folder) is noticed.
//
// Threads: one thread makes and destroys it; lost() is safe from any.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/file_system.h"

namespace lockstep::checkpoint {

/// The process that has a lock.
struct LockHolder {
  std::string node;
  std::string machine;  ///< the boot and the PID namespace: within it process ids can be compared
  std::int64_t process = 0;
  std::uint64_t began = 0;  ///< when the process began, in the kernel's clock ticks
  std::string job;          ///< Slurm's number; empty without Slurm
  std::string run;          ///< random

  /// This process.
  static LockHolder here(const std::string& run);
};

struct FolderLockOptions {
  std::chrono::milliseconds beat = std::chrono::seconds(10);
  std::chrono::milliseconds stale = std::chrono::minutes(1);  ///< after which a holder elsewhere is dead
  std::chrono::milliseconds wait =
      std::chrono::minutes(5);  ///< for the end of an earlier run of the same job
  std::chrono::milliseconds grace = std::chrono::seconds(3);  ///< for another one, which may be ending
  std::function<void()> waiting = [] {};                      ///< called repeatedly while it waits
};

class FolderLock {
 public:
  /// Waits for the end of an earlier run of the same job. Throws Error naming the holder if another job uses the
  /// folder, and naming the folder if it cannot be written.
  FolderLock(FileSystem& system, const std::filesystem::path& folder, const LockHolder& mine,
             FolderLockOptions options = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether the file is no longer this lock's.
  bool lost() const { return lost_; }
  /// The run of the dead process that had the lock before; empty if there was none.
  const std::string& dead_run() const { return dead_run_; }

 private:
  bool create();
  void acquire();
  void take_over(const std::string& text);
  void write(std::uint64_t beats);
  void beat();
  bool is_mine();

  FileSystem& system_;
  std::filesystem::path path_;
  LockHolder mine_;
  FolderLockOptions options_;
  std::string dead_run_;
  UniqueFd file_;
  std::atomic<bool> lost_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace lockstep::checkpoint
