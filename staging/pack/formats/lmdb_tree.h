// Reads the pages of an LMDB file without the LMDB library, which crashes on a truncated or damaged file and does not
// tell where in the file a value lies. Supports version 1 of the format (LMDB 0.9), written on 64-bit little-endian
// machines.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace lockstep::pack {

/// Whether a file is an LMDB database, judged by its first 32 bytes.
bool is_lmdb(std::span<const std::byte> first_bytes);

/// A key and its value, by their offsets in the file.
struct LmdbEntry {
  std::uint64_t key;
  std::uint64_t value;
  std::uint32_t value_bytes;
  std::uint16_t key_bytes;
};

/// All entries of the main database, in the order of their keys. Reads the pages of the tree, but no page
/// that holds only a large value. Throws Error naming the file, the page and what is wrong. Named databases
/// and databases with several values per key are not supported and throw Error too.
std::vector<LmdbEntry> read_lmdb(std::span<const std::byte> file, const std::filesystem::path& name);

/// Throws Error if the file is not an LMDB database or is shorter than its pages.
void check_lmdb(const std::filesystem::path& file);

}  // namespace lockstep::pack
