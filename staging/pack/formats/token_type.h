// The types of tokens. All are little-endian.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace lockstep::pack {

enum class TokenType : std::uint8_t { none, u8, i8, u16, i16, u32, i32, u64, i64, f32, f64 };

/// 1, 2, 4 or 8; 0 for none.
constexpr int bytes_of(TokenType type) {
  switch (type) {
    case TokenType::none:
      return 0;
    case TokenType::u8:
    case TokenType::i8:
      return 1;
    case TokenType::u16:
    case TokenType::i16:
      return 2;
    case TokenType::u32:
    case TokenType::i32:
    case TokenType::f32:
      return 4;
    case TokenType::u64:
    case TokenType::i64:
    case TokenType::f64:
      return 8;
  }
  return 0;
}

/// "u16", "i32", …; "none".
std::string_view name_of(TokenType type);

/// Converts tokens of any type to 64-bit integers, as training needs them. `from` holds into.size() tokens at
/// any address. Throws Error if the type is none, or naming the first u64 token above 2^63 - 1 and its
/// position.
void widen(TokenType type, std::span<const std::byte> from, std::span<std::int64_t> into);

}  // namespace lockstep::pack
