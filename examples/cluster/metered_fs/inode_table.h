// The files that the kernel knows by number. Each is held open (O_PATH), so that a number goes on meaning the
// same file after it is renamed or unlinked.
//
// Threads: safe from any; an entry lives as long as the kernel holds lookups of it.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "common/files.h"

namespace lockstep::metered_fs {

class InodeTable {
 public:
  /// `root`: the backing folder, opened with O_PATH.
  explicit InodeTable(UniqueFd root) : root_(std::move(root)) {}

  /// The O_PATH descriptor of a file.
  int fd(fuse_ino_t number) const;

  /// Finds a name in a folder and counts one lookup of it. Returns 0 or an errno value.
  int lookup(fuse_ino_t parent, const char* name, fuse_entry_param& entry);

  /// Takes back lookups; at none left the file is forgotten.
  void forget(fuse_ino_t number, std::uint64_t lookups);

 private:
  using Identity = std::pair<dev_t, ino_t>;
  struct Inode {
    UniqueFd fd;
    Identity identity;
    std::uint64_t lookups = 0;
  };

  UniqueFd root_;
  std::mutex mutex_;
  std::map<Identity, std::unique_ptr<Inode>> inodes_;
};

}  // namespace lockstep::metered_fs
