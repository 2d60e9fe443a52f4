// The hidden folder in which a pack grows until it is published. One call at a time has it; a killed call
// leaves it for the next one.
//
// Threads: one thread at a time.
#pragma once

#include <filesystem>

#include "common/file_system.h"

namespace lockstep::pack {

class Unfinished {
 public:
  /// Makes the folder, or takes what a killed call has left. Throws Error, naming `what` is being made, where
  /// another process is at it.
  Unfinished(std::filesystem::path folder, const std::filesystem::path& what, FileSystem& system);
  /// Removes the folder with all that is in it, unless keep() was called.
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

}  // namespace lockstep::pack
