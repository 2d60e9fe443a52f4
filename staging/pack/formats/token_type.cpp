#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/error.h"
#include "staging/pack/reader.h"

namespace lockstep::pack {
namespace {

constexpr std::uint64_t kMaxToken = std::numeric_limits<std::int64_t>::max();

template <typename T>
void widen_from(std::span<const std::byte> from, std::span<std::int64_t> into) {
  for (std::size_t i = 0; i < into.size(); ++i) {
    T number;
    std::memcpy(&number, from.data() + i * sizeof(T), sizeof(T));
    if constexpr (std::is_same_v<T, std::uint64_t>) {
      if (number > kMaxToken) fail("token {} is {}, but tokens must not exceed {}", i, number, kMaxToken);
    }
    if constexpr (std::is_floating_point_v<T>) {
      constexpr T kBeyond = T{0x1p63};
      if (!(number >= -kBeyond && number < kBeyond) || std::trunc(number) != number)
        fail("token {} is {}, but tokens must be whole numbers of 64 bits", i, number);
    }
    into[i] = static_cast<std::int64_t>(number);  // NOLINT(bugprone-signed-char-misuse): the sign is meant
  }
}

}  // namespace

std::string_view name_of(TokenType type) {
  constexpr std::array<std::string_view, 11> kNames = {"none", "u8",  "i8",  "u16", "i16", "u32",
                                                       "i32",  "u64", "i64", "f32", "f64"};
  return kNames.at(static_cast<std::size_t>(type));
}

void widen(TokenType type, std::span<const std::byte> from, std::span<std::int64_t> into) {
  if (from.size() != into.size() * static_cast<unsigned>(bytes_of(type)))
    fail("{} bytes are not {} tokens of type {}", from.size(), into.size(), name_of(type));
  switch (type) {
    case TokenType::none:
      fail("the samples are not tokens");
    case TokenType::u8:
      return widen_from<std::uint8_t>(from, into);
    case TokenType::i8:
      return widen_from<std::int8_t>(from, into);
    case TokenType::u16:
      return widen_from<std::uint16_t>(from, into);
    case TokenType::i16:
      return widen_from<std::int16_t>(from, into);
    case TokenType::u32:
      return widen_from<std::uint32_t>(from, into);
    case TokenType::i32:
      return widen_from<std::int32_t>(from, into);
    case TokenType::u64:
      return widen_from<std::uint64_t>(from, into);
    case TokenType::i64:
      return widen_from<std::int64_t>(from, into);
    case TokenType::f32:
      return widen_from<float>(from, into);
    case TokenType::f64:
      return widen_from<double>(from, into);
  }
}

}  // namespace lockstep::pack
