// Records what each user of a node claims to hold, so that all users together stay below the node's total
// although no user can look into another user's store.
//
//   <cache>/claims/lock    flock: held while a process compares and claims
//   <cache>/claims/UID     the user's bytes, as text: those present, and those that copies under way will
//                          still add. The file belongs to that user
//
// A killed copy counts in full until the next call of its user recovers the store, at the latest at the job's end, or gc
// --all records what is there.
//
// Root (the Slurm plugin, or gc --all) makes the folder and the files, so that no user can take another's name; each
// file belongs to its user. A process writes its claim before it compares, so the total is kept even without the lock.
// A user who lies in the claim gains no more than one who fills the disk without asking; gc --all records what is
// really there.
//
// Threads: one at a time; several processes at once.
#pragma once

#include <sys/types.h>

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

  /// Records this user's bytes, if the user has a file.
  void claim(std::uint64_t bytes) const;
  /// The claim of a user; 0 if the file is missing, belongs to another user or does not hold a number.
  std::uint64_t claimed(uid_t user) const;
  /// The claims of all other users together.
  std::uint64_t claimed_by_others() const;
  /// Whether the folder exists, and no user can have made another one's file in it.
  bool trusted() const;

 private:
  std::filesystem::path folder_;
  FileSystem& system_;
};

}  // namespace lockstep::cache
