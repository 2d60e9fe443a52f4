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
#pragma once

#include <bit>
#include <cstdint>

#include "staging/pack/digest.h"

namespace lockstep::pack::layout {

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

}  // namespace lockstep::pack::layout
