// The element types that ranks exchange.
//
// Threads: values, no shared state.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep::comm {

enum class DataType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

/// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  switch (type) {
    case DataType::f64:
    case DataType::i64:
      return 8;
    case DataType::f32:
    case DataType::i32:
      return 4;
    case DataType::bf16:
    case DataType::f16:
      return 2;
    case DataType::u8:
      return 1;
  }
  return 1;
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
  switch (type) {
    case DataType::f32:
      return "f32";
    case DataType::f64:
      return "f64";
    case DataType::bf16:
      return "bf16";
    case DataType::f16:
      return "f16";
    case DataType::i32:
      return "i32";
    case DataType::i64:
      return "i64";
    case DataType::u8:
      return "u8";
  }
  return "?";
}

}  // namespace lockstep::comm
