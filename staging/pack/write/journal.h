// Records the complete shards of an unfinished pack, so that a killed call can be continued: for each shard
// its index and the change times of its files. A record is written after its shard is on disk. A record that
// is truncated, or whose checksum does not follow from the records before it, ends the journal.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
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
  Journal(std::filesystem::path file, std::string_view purpose, FileSystem& system);

  /// Complete shards so far.
  std::size_t shards() const { return ends_.size() - 1; }
  /// Whether the journal of another purpose was found and removed.
  bool was_of_another_purpose() const { return other_purpose_; }

  /// Adds a shard: its index (the bytes of IndexBuilder) and the change time of each part's file.
  void add(std::string_view index, std::span<const std::int64_t> changed_ns);
  /// Removes the records of all but the first `shards` shards.
  void keep(std::size_t shards);

  /// Calls `use` with the records in order; one at a time is in memory.
  void each(const std::function<void(const Entry&)>& use) const;

 private:
  struct Record;
  void create(std::string_view purpose);
  void load(std::string_view purpose);
  Record read(std::size_t shard) const;
  std::vector<std::uint64_t> read_words(std::uint64_t offset, std::uint64_t count) const;

  std::filesystem::path file_;
  FileSystem& system_;
  UniqueFd fd_;
  bool other_purpose_ = false;
  std::vector<std::uint64_t> ends_;       // where the header and each record end, in bytes
  std::vector<std::uint64_t> checksums_;  // of the header and of each record
};

}  // namespace lockstep::pack
