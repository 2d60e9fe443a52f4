// CRC-32C (Castagnoli), as TFRecord files use it: with the processor's own instruction where it has one.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::pack {

/// The checksum of bytes that follow those of which `so_far` is the checksum.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t so_far = 0);

/// The same on a processor without the instruction.
std::uint32_t crc32c_by_tables(std::span<const std::byte> data, std::uint32_t so_far = 0);

/// As TFRecord stores it, so that a checksum of data that holds checksums stays a good one.
constexpr std::uint32_t masked(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace lockstep::pack
