// A folder for an object's files, which becomes the object when it is published.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "common/file_system.h"
#include "staging/cache/object.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

/// Removed when it goes out of scope unpublished, unless keep() was called. The partial copy of a killed
/// process stays for the next process that begins the same object.
class Incoming {
 public:
  Incoming(Incoming&&) = delete;
  ~Incoming() {
    if (!published_ && !keep_) discard();
  }

  /// The folder for the files. Sync each file; publish() then makes files and folders read-only.
  std::filesystem::path files() const { return folder_ / "files"; }

  /// True if an earlier copy left files here. They may be incomplete or, after a power failure, wrong: check
  /// them before you use them.
  bool resumed() const { return resumed_; }

  /// Makes the destructor leave the files for the next process that begins the same object.
  void keep() { keep_ = true; }

  /// Reserves space for `bytes` in total, instead of the number that begin() was given. Throws as begin().
  void reserve(std::uint64_t bytes);

  /// Makes the folder the object, durably; `object` is its name if it is not that of begin(). If another process has
  /// published the object meanwhile, this copy is discarded. Throws Error; the store is then as it was before.
  void publish(const ObjectInfo& info, const std::string& object = "");

 private:
  friend class Store;
  Incoming(Store& store, std::string name, std::uint64_t bytes);
  void discard() noexcept;

  Store& store_;
  FileSystem& system_;
  std::string name_;
  std::filesystem::path folder_;
  bool resumed_ = false;
  bool keep_ = false;
  bool published_ = false;
};

}  // namespace lockstep::cache
