// What the fuzzers of parsers have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string_view>

#include "common/error.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace lockstep::fuzz {

inline std::span<const std::byte> bytes_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const std::byte*>(data), size};
}

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Runs a parser: it may refuse its input by an Error, and by nothing else.
template <typename Parse>
int run(const Parse& parse) {
  try {
    parse();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
  }
  return 0;
}

/// What a parser promised about what it accepted.
inline void require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace lockstep::fuzz
