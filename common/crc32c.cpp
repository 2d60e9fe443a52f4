#include "common/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace lockstep {
namespace {

constexpr std::array<std::uint32_t, 256> kTable = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    table[i] = i;
    for (int bit = 0; bit < 8; ++bit) table[i] = (table[i] >> 1) ^ ((table[i] & 1U) != 0 ? 0x82f63b78U : 0);
  }
  return table;
}();

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) std::uint32_t by_instruction(std::span<const std::byte> data,
                                                               std::uint64_t crc) {
  for (; data.size() >= 8; data = data.subspan(8)) {
    std::uint64_t word = 0;
    std::memcpy(&word, data.data(), sizeof(word));
    crc = _mm_crc32_u64(crc, word);
  }
  for (const std::byte byte : data)
    crc = _mm_crc32_u8(static_cast<std::uint32_t>(crc), std::to_integer<std::uint8_t>(byte));
  return static_cast<std::uint32_t>(crc);
}
#endif

}  // namespace

std::uint32_t crc32c(std::span<const std::byte> data, std::uint32_t so_far) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return ~by_instruction(data, ~so_far);
#endif
  return crc32c_by_table(data, so_far);
}

std::uint32_t crc32c_by_table(std::span<const std::byte> data, std::uint32_t so_far) {
  std::uint32_t crc = ~so_far;
  for (const std::byte byte : data)
    crc = (crc >> 8) ^ kTable[(crc ^ std::to_integer<std::uint32_t>(byte)) & 0xffU];
  return ~crc;
}

}  // namespace lockstep
