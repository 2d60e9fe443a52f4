#include "runtime/data/batch/widen.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "common/vectorised.h"

namespace lockstep::data {
namespace {

template <typename Token>
void widen_all(const std::byte* packed, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, packed + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

// In blocks, because the compiler cannot vectorise a loop whose results overlap its inputs.
template <typename Token>
void narrow_all(std::span<std::int64_t> tokens) {
  std::array<Token, 256> block;
  auto* out = reinterpret_cast<std::byte*>(tokens.data());
  for (std::size_t first = 0; first < tokens.size(); first += block.size()) {
    const std::size_t count = std::min(block.size(), tokens.size() - first);
    for (std::size_t i = 0; i < count; ++i) block[i] = static_cast<Token>(tokens[first + i]);
    std::memcpy(out, block.data(), count * sizeof(Token));
    out += count * sizeof(Token);
  }
}

}  // namespace

LOCKSTEP_VECTORISED
std::size_t narrow(std::span<std::int64_t> tokens) {
  std::int64_t bits = 0;  // of all tokens, with the complement of negative ones
  std::int64_t sign = 0;
  for (const std::int64_t token : tokens) {
    bits |= token ^ (token >> 63);
    sign |= token;
  }
  if (sign >= 0 && bits <= std::numeric_limits<std::uint16_t>::max()) {
    narrow_all<std::uint16_t>(tokens);
    return sizeof(std::uint16_t);
  }
  if (bits > std::numeric_limits<std::int32_t>::max()) return sizeof(std::int64_t);
  narrow_all<std::int32_t>(tokens);
  return sizeof(std::int32_t);
}

LOCKSTEP_VECTORISED
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out) {
  if (token_bytes == sizeof(std::uint16_t)) {
    widen_all<std::uint16_t>(packed, out);
  } else {
    widen_all<std::uint32_t>(packed, out);
  }
}

LOCKSTEP_VECTORISED
void count_up(std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(i);
}

}  // namespace lockstep::data
