// The loops in which a loader's worker spends its time: packed tokens to what embeddings take, and positions.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace lockstep::data {

/// Little-endian unsigned tokens to int64; `packed` may begin anywhere.
template <typename Token>
inline void widen(const std::byte* packed, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, packed + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

/// 0, 1, 2, …
inline void count_up(std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(i);
}

}  // namespace lockstep::data
