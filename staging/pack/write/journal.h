// Records the complete shards of an unfinished pack, so that a killed call can be continued: a folder with a file for
// each shard, which has its index and the change times of its files. The file appears under its name when its shard is
// on disk. A damaged file ends the journal.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/index.h"

namespace lockstep::pack {

class Journal {
 public:
  /// The record of one shard.
  struct Entry {
    Index index;                           ///< of this shard only
    std::vector<std::int64_t> changed_ns;  ///< of each part's file (file_status.h)
  };

  /// Opens the journal of a call with this purpose (any text), or begins one. Removes the journal of another
  /// purpose. Throws Error naming the file.
  Journal(std::filesystem::path folder, std::string_view purpose, FileSystem& system);

  /// Complete shards so far.
  std::size_t shards() const { return shards_; }
  /// Whether the journal of another purpose was found and removed.
  bool was_of_another_purpose() const { return other_purpose_; }

  /// Adds a shard: its index (the bytes of IndexBuilder) and the change time of each part's file.
  void add(std::string_view index, std::span<const std::int64_t> changed_ns);
  /// Removes the records of all but the first `shards` shards.
  void keep(std::size_t shards);

  /// Calls `use` with the records in order; one at a time is in memory.
  void each(const std::function<void(const Entry&)>& use) const;

 private:
  std::filesystem::path file(std::size_t shard) const { return folder_ / std::to_string(shard); }
  std::optional<std::string> read(const std::filesystem::path& file) const;
  void write(const std::filesystem::path& file, std::string_view content);

  std::filesystem::path folder_;
  FileSystem& system_;
  bool other_purpose_ = false;
  std::size_t shards_ = 0;
};

}  // namespace lockstep::pack
