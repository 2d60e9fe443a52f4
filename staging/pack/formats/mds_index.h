// The index.json of MosaicML's streaming datasets (MDS, version 2), and the table at the front of each of its
// shards.
//
// Threads: const members are safe from any thread.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::pack {

struct MdsColumn {
  std::string name;
  std::string encoding;    ///< "str", "ndarray:uint16:2048", …
  std::uint32_t size = 0;  ///< in bytes; 0 where each sample says its own
};

/// One file, as the index.json describes it.
struct MdsFile {
  std::string name;  ///< below the folder of the index.json
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> hashes;  ///< algorithm ("sha1") -> hex digits
};

struct MdsShard {
  MdsFile raw;
  MdsFile compressed;  ///< without a name where the data was not compressed
  std::uint64_t samples = 0;
  std::vector<MdsColumn> columns;  ///< at least one
};

/// Reads an index.json. Throws Error naming the file, the shard and what is wrong with it, a name that leaves
/// the folder for instance.
std::vector<MdsShard> parse_mds_index(std::string_view text, const std::filesystem::path& name);
std::vector<MdsShard> load_mds_index(const std::filesystem::path& file);

/// Checks that a shard's file, plain or compressed, is beside the index.json and as long as that says. Throws
/// Error naming both.
void check_mds_shard(const std::filesystem::path& index, const MdsShard& shard);

/// Where each sample of a shard begins, and at the end where the last one ends, from the shard's first bytes,
/// of which there must be mds_table_bytes(). Throws Error naming shard and sample.
std::vector<std::uint32_t> parse_mds_table(std::string_view front, const MdsShard& shard,
                                           const std::filesystem::path& name);

std::uint64_t mds_table_bytes(const MdsShard& shard);

/// Where a sample's columns lie in its bytes.
struct MdsPart {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// Bytes in front of a sample's columns: the lengths of those that have no fixed one.
std::uint64_t mds_head_bytes(const std::vector<MdsColumn>& columns);

/// The columns of a sample of `bytes` bytes, by its head. Empty where they do not fill the sample.
std::vector<MdsPart> parse_mds_sample(std::span<const std::byte> head, std::uint64_t bytes,
                                      const std::vector<MdsColumn>& columns);

}  // namespace lockstep::pack
