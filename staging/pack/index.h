// The index of a pack: its shards, and where each part of each sample lies in them. The file is mapped, not
// parsed: opening it costs one pass (checksum and bounds), and after that every access is an array access.
//
// Threads: const members are safe from any thread.
#pragma once

#include <bit>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/pack/mapped_file.h"

namespace lockstep::pack {

// The bytes of index.lockstep, version 1 (docs/formats.md). Little-endian; each table begins at a
// multiple of 8 bytes:
//
//   Header
//   ShardRecord  shard[shards]
//   u64          first_part[samples + 1]     parts of sample i: first_part[i] .. first_part[i + 1]
//   PartRecord   part[parts]                 in the order of the shards' bytes
//   u64          string[shards + kinds + samples + 1]
//                                            where each name begins in the strings; the last one is their end
//   bytes        strings[string_bytes]       shard names, kinds, keys
//   u8           digest[16]                  XXH3-128 of all bytes before it
namespace layout {

static_assert(std::endian::native == std::endian::little, "the index is mapped without conversion");

inline constexpr char kMagic[8] = {'L', 'O', 'C', 'K', 'P', 'A', 'C', 'K'};
inline constexpr std::uint32_t kVersion = 1;

struct Header {
  char magic[8];
  std::uint32_t version;
  std::uint32_t header_bytes;
  std::uint32_t token_bytes;  ///< 2 or 4; 0 if samples are not tokens
  std::uint32_t kinds;
  std::uint64_t shards;
  std::uint64_t samples;
  std::uint64_t parts;
  std::uint64_t string_bytes;
  std::uint64_t file_bytes;  ///< of this index
};
static_assert(sizeof(Header) == 64);

struct ShardRecord {
  std::uint64_t size;          ///< bytes of the shard
  std::uint64_t first_sample;  ///< its samples end where the next shard's begin
  Digest digest;               ///< XXH3-128 of the shard
};
static_assert(sizeof(ShardRecord) == 32);

struct PartRecord {
  std::uint64_t offset;  ///< of the payload in its shard
  std::uint64_t size;
  std::uint64_t xxh3;  ///< XXH3-64 of the payload
  std::uint32_t shard;
  std::uint32_t kind;
};
static_assert(sizeof(PartRecord) == 32);

}  // namespace layout

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

/// Collects the samples of the shards, in order, and makes the bytes of an index from them; one thread at a time.
/// The calls follow the order of the data: begin_shard, then for each sample add_sample and add_part for each
/// of its parts, then end_shard; at the end finish. Memory: about 48 bytes and the key for each sample.
class IndexBuilder {
 public:
  explicit IndexBuilder(int token_bytes) : token_bytes_(token_bytes) {}

  void begin_shard(std::string name);
  void add_sample(std::string_view key);
  void add_part(std::string_view kind, std::uint64_t offset, std::uint64_t size, std::uint64_t xxh3);
  void end_shard(std::uint64_t size, const Digest& digest);

  /// All of it for shard s of another index.
  void add_shard(const Index& index, std::size_t s);

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
