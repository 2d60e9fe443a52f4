// Functions that the fuzzers of parsers share.
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

/// Runs a parser. It may throw Error to refuse its input; any other exception ends the fuzzer.
template <typename Parse>
int run(const Parse& parse) {
  try {
    parse();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch)
  }
  return 0;
}

/// Ends the fuzzer if the parser accepted an input for which `condition` is false.
inline void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace lockstep::fuzz
