// Writes samples into shards, and a record of each complete shard into the journal; the index is made from
// the journal at the end. Used by create and convert.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"
#include "staging/pack/index_builder.h"
#include "staging/pack/write/journal.h"
#include "staging/pack/write/shard_writer.h"

namespace lockstep::pack {

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

  /// After begin_sample, call for each part begin_part, write until all its bytes are written, and end_part.
  /// `bytes` is the sum of member_bytes() of the parts. Throws Error if a kind would lead out of the shard's
  /// folder, or is that of another part of the sample.
  void begin_sample(std::string_view key, std::uint64_t bytes);
  void begin_part(std::string_view kind, std::uint64_t size, std::int64_t changed_ns = 0);
  void write(std::span<const std::byte> payload) { shard_->write(payload); }
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
  std::optional<ShardWriter> shard_;
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
