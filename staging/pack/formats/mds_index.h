// The index.json of MosaicML's streaming datasets (MDS, version 2), and the table at the beginning of each
// shard.
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
  std::uint32_t size = 0;  ///< in bytes; 0 if each sample has its own size
};

/// One file, as the index.json describes it.
struct MdsFile {
  std::string name;  ///< relative to the folder of the index.json
  std::uint64_t bytes = 0;
  std::map<std::string, std::string> hashes;  ///< algorithm ("sha1") -> hex digits
};

struct MdsShard {
  MdsFile raw;
  MdsFile compressed;  ///< its name is "" if the data were not compressed
  std::uint64_t samples = 0;
  std::vector<MdsColumn> columns;  ///< at least one
};

/// Reads an index.json. Throws Error naming the file, the shard and what is wrong, for example a file name
/// that leads out of the folder.
std::vector<MdsShard> parse_mds_index(std::string_view text, const std::filesystem::path& name);
std::vector<MdsShard> load_mds_index(const std::filesystem::path& file);

/// Checks that the file of a shard, plain or compressed, exists and is as long as the index.json says. Throws
/// Error naming both.
void check_mds_shard(const std::filesystem::path& index, const MdsShard& shard);

/// Returns where each sample of a shard begins, and where the last one ends. `front` are the first
/// mds_table_bytes() bytes of the shard. Throws Error naming shard and sample.
std::vector<std::uint32_t> parse_mds_table(std::string_view front, const MdsShard& shard,
                                           const std::filesystem::path& name);

std::uint64_t mds_table_bytes(const MdsShard& shard);

/// Where a column lies in the bytes of a sample.
struct MdsPart {
  std::uint64_t offset;
  std::uint64_t bytes;
};

/// The bytes before a sample's columns: the lengths of the columns without a fixed length.
std::uint64_t mds_head_bytes(const std::vector<MdsColumn>& columns);

/// Where the columns of a sample lie. `head` are its first mds_head_bytes() bytes, and `bytes` is its length.
/// Returns nothing if the columns do not fill the sample.
std::vector<MdsPart> parse_mds_sample(std::span<const std::byte> head, std::uint64_t bytes,
                                      const std::vector<MdsColumn>& columns);

}  // namespace lockstep::pack
