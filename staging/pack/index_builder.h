// Collects the samples of the shards, in order, and makes the bytes of an index from them.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/layout.h"

namespace lockstep::pack {

/// The calls follow the order of the data: begin_shard, then for each sample add_sample and add_part for each
/// of its parts, then end_shard; at the end finish. Memory: about 48 bytes and the key for each sample.
class IndexBuilder {
 public:
  explicit IndexBuilder(int token_bytes) : token_bytes_(token_bytes) {}

  void begin_shard(std::string name);
  void add_sample(std::string_view key);
  void add_part(std::string_view kind, std::uint64_t offset, std::uint64_t size, std::uint64_t xxh3);
  void end_shard(std::uint64_t size, const Digest& digest);

  /// Instead of end_shard(), if the shard has no samples: an index has no such shards.
  void remove_empty_shard();

  std::size_t samples() const { return key_end_.size(); }
  std::size_t parts() const { return parts_.size(); }
  std::size_t shards() const { return shards_.size(); }

  /// The bytes of the index file.
  std::string finish() const;

 private:
  std::uint32_t kind_number(std::string_view kind);

  int token_bytes_;
  std::vector<std::string> shard_names_;
  std::vector<layout::ShardRecord> shards_;
  std::map<std::string, std::uint32_t, std::less<>> kind_numbers_;
  std::vector<std::string> kinds_;
  std::string keys_;
  std::vector<std::uint64_t> key_end_;
  std::vector<std::uint64_t> first_part_;
  std::vector<layout::PartRecord> parts_;
};

}  // namespace lockstep::pack
