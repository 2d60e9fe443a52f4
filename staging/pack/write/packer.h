// Writes samples into shards, and a record of each complete shard into the journal; the index is made from
// the journal at the end. Used by create and convert.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/index.h"

namespace lockstep::pack {

/// Records the complete shards of an unfinished pack, so that a killed call can be continued: a folder with a file for each
/// shard, which has its index and the change times of its files. The file appears under its name when its shard is on disk. A
/// damaged file ends the journal.
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

class ShardWriter;

/// "shard-000007.tar"
std::string shard_file_name(std::size_t number);

/// The bytes that a member of this size takes in a shard. A name over 100 bytes takes 1 to 9 blocks more,
/// which are not counted: the end of a shard depends on the sizes of the files only.
std::uint64_t member_bytes(std::uint64_t payload);

/// Whether a shard that would have `shard` bytes if it ended now has room for a sample of `sample` bytes.
bool fits(std::uint64_t shard, std::uint64_t sample, std::uint64_t shard_bytes);

class Packer {
 public:
  struct Options {
    std::filesystem::path folder;   ///< for the shards; it must not hold a shard with the number of a new one
    std::uint64_t shard_bytes = 0;  ///< largest shard; a larger sample gets its own shard
    int token_bytes = 0;
  };
  /// Continues after the shards in the journal.
  Packer(Options options, Journal& journal, FileSystem& system);
  ~Packer();

  /// After begin_sample, call for each part begin_part, write until all its bytes are written, and end_part.
  /// `bytes` is the sum of member_bytes() of the parts. Throws Error if a kind would lead out of the shard's
  /// folder, or is that of another part of the sample.
  void begin_sample(std::string_view key, std::uint64_t bytes);
  void begin_part(std::string_view kind, std::uint64_t size, std::int64_t changed_ns = 0);
  void write(std::span<const std::byte> payload);
  void end_part(std::uint64_t xxh3);

  /// Ends the last shard.
  void finish() {
    if (shard_) end_shard();
  }

 private:
  void begin_shard();
  void end_shard();

  Options options_;
  Journal& journal_;
  FileSystem& system_;
  std::unique_ptr<ShardWriter> shard_;
  std::optional<IndexBuilder> index_;
  std::vector<std::int64_t> changed_ns_;
  std::string key_;
  std::set<std::string, std::less<>> kinds_;  // of this sample so far
  std::string kind_;
  std::uint64_t offset_ = 0;
  std::uint64_t size_ = 0;
};

/// Makes one index of those in the journal, syncs it and returns its size in bytes.
std::uint64_t write_index(const std::filesystem::path& file, int token_bytes, const Journal& journal,
                          FileSystem& system);

}  // namespace lockstep::pack
