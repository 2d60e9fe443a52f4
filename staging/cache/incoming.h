// A folder for an object's files that becomes the object when it is published.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "common/file_system.h"
#include "staging/cache/object.h"

namespace lockstep::cache {

class Store;

/// Discarded when it goes out of scope unpublished, unless it is to be kept. What a killed process was
/// copying stays, for the next that begins the same object.
class Incoming {
 public:
  Incoming(Incoming&&) = delete;
  ~Incoming();

  /// Put the files here, synced; publish() makes files and folders in it read-only.
  std::filesystem::path files() const { return folder_ / "files"; }

  /// True where an earlier copy left files here. They may be short, and after a power cut wrong: check them
  /// before they are taken for copied.
  bool resumed() const { return resumed_; }

  /// The destructor leaves what is here for the next that begins the same object.
  void keep() { keep_ = true; }

  /// Shows those who wait for the object's lock that this copy goes on, where nothing is written for a while.
  void touch() noexcept;

  /// So many bytes are there by now: from time to time the node's other users are told, for whom that is what
  /// stays of this copy when it is killed.
  void grown(std::uint64_t bytes) noexcept;

  /// Makes room for `bytes` in all, where more are to come than begin() was told. Throws as begin().
  void reserve(std::uint64_t bytes);

  /// Makes it the object of its name, durably. Throws Error; the object is then as it was before.
  void publish(const ObjectInfo& info);

 private:
  friend class Store;
  Incoming(Store& store, std::string name, std::uint64_t bytes, std::optional<UniqueFd> claim);
  void discard() noexcept;

  Store& store_;
  FileSystem& system_;
  std::string name_;
  std::filesystem::path folder_;
  std::optional<UniqueFd> claim_;      // on the node's total, for what is to come
  std::optional<std::uint64_t> told_;  // bytes that were there when the others were told
  bool resumed_ = false;
  bool keep_ = false;
  bool published_ = false;
};

}  // namespace lockstep::cache
