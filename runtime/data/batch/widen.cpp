#include "runtime/data/batch/widen.h"

#include <cstring>

// Sanitizers do not support functions that are selected when the program is loaded.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define LOCKSTEP_FOR_THIS_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define LOCKSTEP_FOR_THIS_PROCESSOR
#endif

namespace lockstep::data {
namespace {

template <typename Token>
inline __attribute__((always_inline)) void widen_all(const std::byte* packed, std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Token token;
    std::memcpy(&token, packed + i * sizeof(Token), sizeof(Token));
    out[i] = token;
  }
}

}  // namespace

LOCKSTEP_FOR_THIS_PROCESSOR
void widen(const std::byte* packed, std::size_t token_bytes, std::span<std::int64_t> out) {
  if (token_bytes == sizeof(std::uint16_t)) {
    widen_all<std::uint16_t>(packed, out);
  } else {
    widen_all<std::uint32_t>(packed, out);
  }
}

LOCKSTEP_FOR_THIS_PROCESSOR
void count_up(std::span<std::int64_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = static_cast<std::int64_t>(i);
}

}  // namespace lockstep::data
