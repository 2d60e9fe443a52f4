// The loops in which a loader's worker spends its time: packed tokens to what embeddings take, and positions.
// With GCC on x86-64 compiled for several instruction sets, of which the loader takes the processor's.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep::data {

/// Little-endian unsigned tokens of 2 or 4 bytes to int64; `packed` may begin anywhere.
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out);

/// 0, 1, 2, …
void count_up(std::span<std::int64_t> out);

/// Asks for memory that will be read soon: samples lie anywhere, so the processor does not guess the next.
inline void fetch_early(std::span<const std::byte> bytes) {
  constexpr std::size_t kLine = 64;
  constexpr std::size_t kMaxBytes = 2048;  // what follows, the processor guesses
  for (std::size_t at = 0; at < bytes.size() && at < kMaxBytes; at += kLine) {
    __builtin_prefetch(bytes.data() + at);
  }
}

}  // namespace lockstep::data
