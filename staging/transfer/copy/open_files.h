// Files that several threads read and write at once, kept open while they are used and for a while after. On
// a network file system opening a file costs more than reading it, and a process may have only so many files
// open.
//
// Threads: safe from any.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "common/files.h"

namespace lockstep::transfer {

class OpenFiles {
 public:
  using Open = std::function<UniqueFd(std::size_t file)>;

  /// Keeps up to `max_open` files open, besides those in use.
  OpenFiles(std::size_t max_open, Open open) : max_open_(max_open), open_(std::move(open)) {}

  /// The file, open until the pointer is dropped. Two threads that ask for the same file at once may open it
  /// twice.
  std::shared_ptr<const UniqueFd> get(std::size_t file);

  /// Forgets the file; it stays open while it is in use.
  void drop(std::size_t file);

 private:
  std::size_t max_open_;
  Open open_;
  std::mutex mutex_;
  std::map<std::size_t, std::shared_ptr<const UniqueFd>>
      files_;  // copied in this order, so the first one is closed first
};

}  // namespace lockstep::transfer
