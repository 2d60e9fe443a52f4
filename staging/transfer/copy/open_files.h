// Files that several threads read and write at once, kept open while they are in use and for a while after:
// on a network file system opening costs more than reading, and a process may have only so many files open.
//
// Threads: safe from any.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "common/files.h"

namespace lockstep::transfer {

class OpenFiles {
 public:
  using Open = std::function<UniqueFd(std::size_t file)>;

  /// Keeps up to `most` of them open, besides those in use.
  OpenFiles(std::size_t most, Open open) : most_(most), open_(std::move(open)) {}

  /// The file, open until the pointer is dropped. Two threads that ask for the same at once may open it
  /// twice.
  std::shared_ptr<const UniqueFd> get(std::size_t file);

  /// Forgets the file; who uses it keeps it.
  void drop(std::size_t file);

 private:
  struct Entry {
    std::shared_ptr<const UniqueFd> fd;
    std::list<std::size_t>::iterator place;
  };

  std::size_t most_;
  Open open_;
  std::mutex mutex_;
  std::list<std::size_t> recent_;  // used last first
  std::unordered_map<std::size_t, Entry> entries_;
};

}  // namespace lockstep::transfer
