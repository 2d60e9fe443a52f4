// The loops that take most of a worker's time: they convert packed tokens to int64 and back, and write positions.
// With GCC on x86-64 they are compiled for several instruction sets, and the dynamic linker selects the one
// for the processor.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// Converts little-endian unsigned tokens of 2 or 4 bytes to int64. `packed` needs no alignment.
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out);

/// Rewrites the tokens in place as uint16 if all fit, otherwise as int32, so that fewer bytes travel to a device. Returns
/// the bytes of each: 2, 4, or 8 if some need int64; they then stay as they are.
std::size_t narrow(std::span<std::int64_t> tokens);

/// Writes 0, 1, 2, …
void count_up(std::span<std::int64_t> out);

/// Prefetches memory that will be read soon: samples are in random order, so the processor cannot predict
/// the next.
inline void prefetch_memory(std::span<const std::byte> bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kMaxBytes = 2048;  // the processor prefetches the rest
  for (std::size_t at = 0; at < bytes.size() && at < kMaxBytes; at += kLine) {
    __builtin_prefetch(bytes.data() + at);
  }
}

}  // namespace lockstep::data
