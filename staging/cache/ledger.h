// What the users of a node say they hold, so that together they stay below the node's total although nobody
// can look into another's store.
//
//   <cache>/claims/lock    flock: held while somebody compares and claims
//   <cache>/claims/UID     that user's bytes, as text; his own file: those that are there, and those that
//   copies
//                          under way are still to bring; flock: held, shared, by each of these copies
//
// What a copy was to bring no longer counts once it has been killed, since nobody holds the file then.
//
// Folder and files are made by root (the Slurm plugin, or gc --all), so that nobody can take another's name;
// the files are each their user's. A claim is written first and compared then, so the total holds also when
// the lock cannot be had. Who lies in his own file gets no more than who fills the disk without asking; gc
// --all writes down what is really there.
//
// Threads: one at a time; processes at once.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "common/file_system.h"

namespace lockstep::cache {

class Ledger {
 public:
  /// Of the cache whose stores lie beside `folder`. Nothing is made; without the folder there is no ledger,
  /// and all calls do nothing.
  Ledger(std::filesystem::path folder, FileSystem& system);

  /// As root: makes what is missing of the folder, its lock and a user's file.
  static void prepare(const std::filesystem::path& folder, uid_t user);

  /// Waits for the lock, but not for ever: it serves to be fair, not to be right.
  std::optional<UniqueFd> lock() const;

  /// Keeps what this user's copies are to bring claimed for as long as the descriptor is open. Nothing where
  /// there is no file for him, or another keeps him from locking it.
  std::optional<UniqueFd> hold() const;
  /// Writes what this user holds, and what is to come, which counts as long as somebody has hold(). False
  /// where there is no file for him.
  bool claim(std::uint64_t bytes, std::uint64_t to_come) const;
  /// Writes that so many of this user's bytes that were to come are there now. One call at a time.
  void arrived(std::uint64_t bytes) const;
  /// What a user claims; 0 where his file is missing, not his, or no number.
  std::uint64_t claimed(uid_t user) const;
  /// What all other users claim together.
  std::uint64_t claimed_by_others() const;

 private:
  struct Claim {
    std::uint64_t there = 0;
    std::uint64_t to_come = 0;
    bool held = false;  // some copy is to bring it
  };

  Claim read(uid_t user) const;
  bool trusted() const;
  std::optional<UniqueFd> lock_file(const std::filesystem::path& file, FileSystem::LockKind kind,
                                    std::chrono::milliseconds patience) const;

  std::filesystem::path folder_;
  FileSystem& system_;
};

}  // namespace lockstep::cache
