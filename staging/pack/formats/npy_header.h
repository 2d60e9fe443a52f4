// The header of NumPy's .npy files: what type the numbers have, and how many there are along each axis.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "staging/pack/formats/token_type.h"

namespace lockstep::pack {

struct NpyHeader {
  std::uint64_t data_offset = 0;  ///< in bytes
  std::uint64_t item_bytes = 0;
  TokenType type = TokenType::none;  ///< none for what is no plain number of at most 8 bytes
  std::vector<std::uint64_t> shape;  ///< of texts with one more axis, their characters

  /// Bytes of all numbers.
  std::uint64_t data_bytes() const;
};

/// Bytes of the front of a file that hold the header of any file that this library reads.
inline constexpr std::size_t kNpyHeaderBytes = 65536;

/// Reads the header off the front of a file. Throws Error naming the file where it is no .npy, or none that
/// can be read as it lies there: Python objects, records, Fortran's or big-endian order.
NpyHeader parse_npy_header(std::string_view front, const std::filesystem::path& name);

/// How samples lie in an array: a sample is a row of the first axis, and the whole array where there is only
/// one.
struct Rows {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
};

/// Throws Error where there are no rows, or nothing in them.
Rows rows_of(const std::vector<std::uint64_t>& shape, std::uint64_t item_bytes, const std::string& name);

/// What a row's numbers are as tokens: integers along one or two axes are, pictures and measurements are not.
TokenType tokens_of(TokenType type, std::size_t axes);

/// Checks that the file is as long as its header says, where the header is one that parse_npy_header reads.
void check_npy(const std::filesystem::path& file);

}  // namespace lockstep::pack
