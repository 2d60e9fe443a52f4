// The header of NumPy's .npy files: the type of the numbers and the shape of the array.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "staging/pack/reader.h"

namespace lockstep::pack {

struct NpyHeader {
  std::uint64_t data_offset = 0;  ///< in bytes
  std::uint64_t item_bytes = 0;
  TokenType type = TokenType::none;  ///< none if the items are not integers of at most 8 bytes
  std::vector<std::uint64_t> shape;  ///< for texts with one more axis: their characters

  /// Bytes of all numbers.
  std::uint64_t data_bytes() const;
};

/// The first bytes of a file that must hold the header; longer headers are not supported.
inline constexpr std::size_t kNpyHeaderBytes = 65536;

/// Parses the header from the first bytes of a file. Throws Error naming the file if it is not a .npy file,
/// or if its data are not supported: Python objects, records, Fortran or big-endian order.
NpyHeader parse_npy_header(std::string_view front, const std::filesystem::path& name);

/// The samples of an array are its rows along the first axis. An array with one axis is one sample.
struct Rows {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
};

/// Throws Error if there are no rows, or if they are empty.
Rows rows_of(const std::vector<std::uint64_t>& shape, std::uint64_t item_bytes, const std::string& name);

/// The type of integers of this size; none if there is no such type.
TokenType integer_type(bool is_signed, std::uint64_t bytes);

/// The type of a row's tokens. Integers in an array of one or two axes are tokens; images and measurements
/// are not.
TokenType tokens_of(TokenType type, std::size_t axes);

/// Checks that the file is as long as its header says. Accepts .npy files that parse_npy_header does not
/// support.
void check_npy(const std::filesystem::path& file);

}  // namespace lockstep::pack
