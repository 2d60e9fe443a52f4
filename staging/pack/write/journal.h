// What an unfinished pack holds so far: for each whole shard its piece of the index, and the times of the
// files that went into it, so that a killed call can be continued. A record is written after its shard is on
// the disk; one that was cut short, or does not follow from those before it, ends the journal.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/index.h"

namespace lockstep::pack {

class Journal {
 public:
  /// What one shard was made of.
  struct Entry {
    Index index;                           ///< of this shard alone
    std::vector<std::int64_t> changed_ns;  ///< of each part's file (ordered_loader.h)
  };

  /// Opens the journal of a call with this purpose (any text), or begins one. What another purpose has left
  /// is forgotten. Throws Error naming the file.
  Journal(std::filesystem::path file, std::string_view purpose, FileSystem& system);

  /// Whole shards so far.
  std::size_t shards() const { return ends_.size() - 1; }
  /// The journal that was found was of another purpose.
  bool was_of_another_purpose() const { return other_purpose_; }

  /// Adds a shard: its index (IndexBuilder's bytes) and, for each part, when its file was last changed.
  void add(std::string_view index, std::span<const std::int64_t> changed_ns);
  /// Forgets all but the first `shards` shards.
  void keep(std::size_t shards);

  /// Calls `use` with the shards' entries in order, one in memory at a time.
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
  std::vector<std::uint64_t> ends_;   // of the header and of each record, in bytes
  std::vector<std::uint64_t> chain_;  // what the checksum of the record there covers
};

}  // namespace lockstep::pack
