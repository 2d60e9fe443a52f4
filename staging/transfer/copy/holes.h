// The parts of a sparse file that are not stored and read as zeros, such as most of an LMDB map. A copy keeps them as
// holes: they take no space, and are not read.
//
// Threads: safe from any.
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

namespace lockstep::transfer {

/// Returns how many bytes of a file lie in holes: 0 if it has none, cannot be opened, or its file system cannot tell.
/// Opens only files that occupy less than their length. `status` is the file's.
std::uint64_t bytes_of_holes(const std::filesystem::path& file, const struct stat& status);

struct ByteRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

/// Returns the first data in [begin, end): empty at `end` if there is only a hole. If the file system cannot tell,
/// everything is data.
ByteRange next_data(int fd, std::uint64_t begin, std::uint64_t end);

/// The bytes in which holes are made.
inline constexpr std::size_t kHoleBytes = 4096;

/// Returns the length of the longest beginning of `bytes` that consists of blocks of kHoleBytes (the last one may be
/// shorter) that all are zero, or that all are not. `zero`: which of the two.
std::size_t equal_blocks(std::span<const std::byte> bytes, bool& zero);

}  // namespace lockstep::transfer
