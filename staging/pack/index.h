// The index of a pack: its shards, and where each part of each sample lies in them. The file is mapped, not
// parsed: opening it costs one pass (checksum and bounds), and after that every access is an array access.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/layout.h"
#include "staging/pack/mapped_file.h"

namespace lockstep::pack {

inline constexpr std::string_view kIndexName = "index.lockstep";

/// A checked index: whatever bytes the file had, no accessor leaves the tables and no part lies outside its shard.
class Index {
 public:
  /// Maps and checks an index file. Throws Error naming the file and what is wrong. For a copy, `shown` is
  /// the file that messages name instead.
  static Index load(const std::filesystem::path& file, const std::filesystem::path& shown = {});

  /// The same for bytes in memory. They must be 8-byte aligned and outlive the Index.
  static Index parse(std::span<const std::byte> bytes, const std::filesystem::path& name);

  const std::filesystem::path& file() const { return file_; }
  std::size_t shards() const { return shards_.size(); }
  std::size_t samples() const { return first_part_.size() - 1; }
  std::size_t parts() const { return parts_.size(); }
  int token_bytes() const { return token_bytes_; }
  std::uint64_t file_bytes() const { return bytes_.size(); }
  /// The checksum that the file ends with; it identifies this index.
  Digest digest() const;

  const layout::ShardRecord& shard(std::size_t s) const { return shards_[s]; }
  std::string_view shard_name(std::size_t s) const { return string(s); }
  /// The number of the shard with that file name; shards() if there is none.
  std::size_t find_shard(std::string_view name) const;
  /// Samples first_sample(s) to first_sample(s + 1) lie in shard s.
  std::size_t first_sample(std::size_t s) const {
    return s == shards() ? samples() : shards_[s].first_sample;
  }

  std::string_view key(std::size_t sample) const { return string(shards_.size() + kinds_ + sample); }
  /// Parts first_part(i) to first_part(i + 1) belong to sample i.
  std::size_t first_part(std::size_t sample) const { return first_part_[sample]; }
  const layout::PartRecord& part(std::size_t p) const { return parts_[p]; }
  std::string_view kind(const layout::PartRecord& part) const { return string(shards_.size() + part.kind); }
  bool has_kind(std::string_view kind) const;

  /// 32 hex digits that identify samples begin to end and their order: keys, kinds, lengths and digests, but
  /// not their positions.
  std::string fingerprint(std::size_t begin, std::size_t end) const;

  /// The bytes of an index of these shards only (ascending numbers).
  std::string subset(const std::vector<std::size_t>& shards) const;

 private:
  std::string_view string(std::size_t n) const {
    return strings_.substr(string_begin_[n], string_begin_[n + 1] - string_begin_[n]);
  }
  void check_strings() const;
  void check_shards() const;
  void check_parts() const;

  std::filesystem::path file_;
  MappedFile mapping_;
  std::span<const std::byte> bytes_;
  int token_bytes_ = 0;
  std::size_t kinds_ = 0;
  std::span<const layout::ShardRecord> shards_;
  std::span<const std::uint64_t> first_part_;
  std::span<const layout::PartRecord> parts_;
  std::span<const std::uint64_t> string_begin_;
  std::string_view strings_;
};

}  // namespace lockstep::pack
