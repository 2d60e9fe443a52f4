// The hidden folder in which a pack is written until it is published. It belongs to one call at a time; a
// killed call leaves it to the next one.
//
// Threads: one thread at a time.
#pragma once

#include <filesystem>

#include "common/file_system.h"

namespace lockstep::pack {

// In the folder: the pack, which is renamed to its final name, and the journal of its complete shards.
inline constexpr const char* kPack = "pack";
inline constexpr const char* kJournal = "complete";

class Unfinished {
 public:
  /// Creates the folder, or takes the one that a killed call left. Throws Error naming `what` is being made,
  /// if another process is making it.
  Unfinished(std::filesystem::path folder, const std::filesystem::path& what, FileSystem& system);
  /// Removes the folder and its content, unless keep() was called.
  ~Unfinished();
  Unfinished(const Unfinished&) = delete;
  Unfinished& operator=(const Unfinished&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  /// Leaves the folder for the next call.
  void keep() { keep_ = true; }

 private:
  std::filesystem::path folder_;
  FileSystem& system_;
  UniqueFd lock_;
  bool keep_ = false;
};

/// A new folder inside the hidden one, for a call that continues nothing. Throws Error if an interrupted create() has left
/// complete shards there, which it could continue.
std::filesystem::path working_folder(Unfinished& unfinished, const std::filesystem::path& out,
                                     FileSystem& system);

/// Gives the complete pack its name.
void publish_pack(const std::filesystem::path& pack, const std::filesystem::path& out, FileSystem& system);

}  // namespace lockstep::pack
