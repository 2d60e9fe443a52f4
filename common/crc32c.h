// CRC-32C (Castagnoli), the checksum of TFRecord files. Uses the processor's instruction for it if there is
// one.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

/// The checksum of `data`, or of earlier bytes with the checksum `so_far` and `data` after them.
std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t so_far = 0);

/// The same without the processor's instruction.
std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t so_far = 0);

/// The form in which TFRecord stores a checksum, since a checksum of data that contain checksums is weak.
constexpr std::uint32_t masked_crc32c(std::uint32_t crc) {
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

}  // namespace lockstep
