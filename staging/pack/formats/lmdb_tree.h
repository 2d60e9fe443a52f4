// The pages of an LMDB file, read by ourselves: the library maps a file as it is and dies of one that is
// truncated or damaged, and it does not say where in the file a value lies. The file format has one version,
// 1 (LMDB 0.9), and is read for machines with 64 bits and little-endian numbers.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::pack {

/// A key and its value, by their offsets in the file.
struct LmdbEntry {
  std::uint64_t key;
  std::uint64_t value;
  std::uint32_t value_bytes;
  std::uint16_t key_bytes;
};

/// All entries of the main database, in the order of their keys. Touches the pages of the tree, not those
/// that hold only a large value. Throws Error naming file, page and what is wrong with it, or for named
/// databases and databases with several values per key, which are not read.
std::vector<LmdbEntry> read_lmdb(std::span<const std::byte> file, const std::filesystem::path& name);

/// Throws Error where the file is no LMDB database or shorter than its pages.
void check_lmdb(const std::filesystem::path& file);

}  // namespace lockstep::pack
