// The element types that ranks exchange.
//
// Threads: values, no shared state.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

enum class DataType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

/// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  constexpr std::array<std::size_t, 7> kBytes = {4, 8, 2, 2, 4, 8, 1};
  return kBytes.at(static_cast<std::size_t>(type));
}

/// The first element of `part` when `count` elements are divided into `parts`. Parts begin on cache lines, so
/// that two ranks that write their parts never share a line.
constexpr std::size_t part_begin(std::size_t count, std::size_t part, std::size_t parts, DataType type) {
  if (part == parts) return count;
  const std::size_t line = 64 / size_of(type);
  return count * part / parts / line * line;
}

/// "f32"
constexpr const char* name_of(DataType type) {
  constexpr std::array<const char*, 7> kNames = {"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
  return kNames.at(static_cast<std::size_t>(type));
}

}  // namespace lockstep::comm
