// The lock of a folder of checkpoints: the file `.lock` in it, which names the process that writes there. Two trainings
// in one folder would remove each other's checkpoints.
//
// The lock is made by link(2), which works on the file systems of clusters, NFS included. A holder on this node is
// looked up among the processes. A holder elsewhere is dead when Slurm no longer knows its step. Nothing runs while a
// lock is held; lost() looks whether it still is.
//
// Threads: one thread makes and destroys it; lost() is safe from any.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "common/file_system.h"

namespace lockstep::checkpoint {

/// The process that has a lock.
struct LockHolder {
  std::string node;
  std::string machine;  ///< the boot and the PID namespace: within it process ids can be compared
  std::int64_t process = 0;
  std::uint64_t began = 0;  ///< when the process began, in the kernel's clock ticks
  // Slurm's; empty without Slurm.
  std::string cluster;
  std::string job;
  std::string step;     ///< empty outside a step
  std::string restart;  ///< how often the job was requeued
  std::string run;      ///< random

  /// This process.
  static LockHolder here(const std::string& run);
};

struct FolderLockOptions {
  std::chrono::milliseconds wait = std::chrono::minutes(5);   ///< for the end of another step of the same job
  std::chrono::milliseconds grace = std::chrono::seconds(3);  ///< for another one, which may be ending
  std::chrono::milliseconds ask = std::chrono::seconds(2);    ///< between two questions to Slurm
  /// Take the lock over from a holder that cannot be looked up.
  bool force = false;
  std::function<void()> waiting = [] {};  ///< called repeatedly while it waits
};

class FolderLock {
 public:
  /// Waits for the end of another step of the same job. Throws Error naming the holder if another training uses the
  /// folder, and naming the folder if it cannot be written.
  FolderLock(FileSystem& system, const std::filesystem::path& folder, const LockHolder& mine,
             FolderLockOptions options = {});
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether the file is no longer this lock's. Throws Error if the folder cannot be read.
  bool lost() const { return !is_mine(path_); }
  /// The run of the dead process that had the lock before; empty if there was none.
  const std::string& dead_run() const { return dead_run_; }

 private:
  struct Look {
    bool taken = false;
    bool is_held = false;                // false for both: it changed meanwhile
    std::optional<bool> alive{};         // nullopt: it cannot be known
    std::optional<LockHolder> holder{};  // nullopt: the file is not a lock of this version
  };
  bool link(const std::filesystem::path& lock);
  Look try_to_take(const std::filesystem::path& lock);
  void acquire();
  std::optional<bool> lives(const LockHolder& holder);
  bool is_mine(const std::filesystem::path& lock) const;

  FileSystem& system_;
  std::filesystem::path path_;
  std::filesystem::path own_;  // the file that becomes `.lock`
  LockHolder mine_;
  FolderLockOptions options_;
  std::string dead_run_;
  std::optional<bool> slurm_knows_;  // the last answer, about asked_run_
  std::string asked_run_;
  std::chrono::steady_clock::time_point asked_at_{};
  UniqueFd file_;
};

}  // namespace lockstep::checkpoint
