// Records what each user of a node claims to hold, so that all users together stay below the node's total
// although no user can look into another user's store.
//
//   <cache>/claims/lock    flock: held while a process compares and claims
//   <cache>/claims/UID     the user's bytes, as text: those present, and those that copies under way will
//                          still add. The file belongs to that user; flock: held, shared, by each copy
//
// Pending bytes of a killed copy no longer count, because nobody holds the file then.
//
// Root (the Slurm plugin, or gc --all) makes the folder and the files, so that no user can take another's name; each
// file belongs to its user. A process writes its claim before it compares, so the total is kept even without the lock.
// A user who lies in the claim gains no more than one who fills the disk without asking; gc --all records what is
// really there.
//
// Threads: one at a time; several processes at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "common/file_system.h"

namespace lockstep::cache {

class UsageClaims {
 public:
  /// The claims of the cache whose stores lie beside `folder`. Makes nothing; if the folder is missing, all
  /// calls do nothing.
  UsageClaims(std::filesystem::path folder, FileSystem& system);

  /// As root: makes the folder, its lock and a user's file if they are missing.
  static void prepare(const std::filesystem::path& folder, uid_t user);

  /// Waits for the lock for a limited time. For fairness only.
  std::optional<UniqueFd> lock() const;

  /// Makes this user's pending bytes count for as long as the descriptor is open. Returns nullopt if the user
  /// has no file, or another process keeps it locked.
  std::optional<UniqueFd> hold_pending() const;
  /// Records the bytes present and the pending bytes; the latter count while somebody has hold_pending().
  /// Returns false if the user has no file.
  bool claim(std::uint64_t present, std::uint64_t pending) const;
  /// Moves bytes of this user from pending to present. One call at a time.
  void move_to_present(std::uint64_t bytes) const;
  /// The claim of a user; 0 if the file is missing, belongs to another user or does not hold numbers.
  std::uint64_t claimed(uid_t user) const;
  /// The claims of all other users together.
  std::uint64_t claimed_by_others() const;

 private:
  struct Claim {
    std::uint64_t present = 0;
    std::uint64_t pending = 0;
    bool held = false;  // a copy is under way that will add the pending bytes
  };

  Claim read(uid_t user) const;
  bool trusted() const;
  std::optional<UniqueFd> lock_file(const std::filesystem::path& file, FileSystem::LockKind kind,
                                    std::chrono::milliseconds timeout) const;

  std::filesystem::path folder_;
  FileSystem& system_;
};

}  // namespace lockstep::cache
