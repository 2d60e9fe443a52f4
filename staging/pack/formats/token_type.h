// The types of tokens. All are little-endian.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::pack {

enum class TokenType : std::uint8_t { none, u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };

/// 1, 2, 4 or 8; 0 for none.
constexpr int bytes_of(TokenType type) {
  constexpr std::array<int, 11> kBytes = {0, 1, 1, 2, 2, 4, 4, 8, 8, 4, 8};
  return kBytes.at(static_cast<std::size_t>(type));
}

/// "u16", "i32", …; "none".
std::string_view name_of(TokenType type);

/// Converts tokens of any type to 64-bit integers, as training needs them. `from` holds into.size() tokens at
/// any address. Throws Error if the type is none, or naming the first u64 token above 2^63 - 1 and its
/// position.
void widen(TokenType type, std::span<const std::byte> from, std::span<std::int64_t> into);

}  // namespace lockstep::pack
