// The files that the kernel knows by number. A number means the same file after a rename or unlink. The table
// stores handles (open_by_handle_at), so that a hundred thousand files need no descriptors; on a file system
// without handles it keeps each file open (O_PATH).
//
// Threads: safe from any; an entry lives as long as the kernel has lookups of it.
#pragma once

#define FUSE_USE_VERSION 312
#include <fuse3/fuse_lowlevel.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "common/files.h"

namespace lockstep::metered_fs {

/// An O_PATH descriptor: the table's, or one that this object closes. -1 with errno set if the file no longer
/// exists.
class InodeFd {
 public:
  explicit InodeFd(int of_table) : fd_(of_table) {}
  explicit InodeFd(UniqueFd own) : own_(std::move(own)), fd_(own_.get()) {}
  int get() const { return fd_; }

 private:
  UniqueFd own_;
  int fd_;
};

class InodeTable {
 public:
  /// `root`: the backing folder, opened for reading.
  explicit InodeTable(UniqueFd root);

  InodeFd open(fuse_ino_t number) const;

  /// Finds a name in a folder and counts one lookup of it. Returns 0 or an errno value.
  int lookup(fuse_ino_t parent, const char* name, fuse_entry_param& entry);

  /// Removes lookups. Removes the file after the last one.
  void forget(fuse_ino_t number, std::uint64_t lookups);

 private:
  struct Inode {
    UniqueFd fd;         // or:
    std::string handle;  // the argument of open_by_handle_at
    std::string key;     // in inodes_
    std::uint64_t lookups = 0;
  };

  std::string handle_of(int fd) const;
  UniqueFd open_handle(const std::string& handle) const;

  UniqueFd root_;
  int mount_ = -1;  // the mount of root_, if its file system has handles
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<Inode>> inodes_;
};

}  // namespace lockstep::metered_fs
