// Reads the rows of an array as samples: they have equal lengths and follow each other in the file.
//
// Threads: as Reader.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "staging/pack/formats/extent_reader.h"

namespace lockstep::pack {

/// The samples of an array are its rows along the first axis. An array with one axis is one sample.
struct Rows {
  std::uint64_t rows = 1;
  std::uint64_t row_bytes = 0;
};

/// Throws Error if there are no rows, or if they are empty.
Rows rows_of(const std::vector<std::uint64_t>& shape, std::uint64_t item_bytes, const std::string& name);

/// The type of a row's tokens. Integers in an array of one or two axes are tokens; images and measurements
/// are not.
TokenType tokens_of(TokenType type, std::size_t axes);

class RowsReader : public ExtentReader {
 public:
  /// Throws Error if the rows extend past the end of the file.
  RowsReader(const std::filesystem::path& folder, std::string file, std::uint64_t offset, Rows rows,
             TokenType type);

  /// An array has no digests: this checks that all bytes can be read.
  void verify(const ReadProgress& progress) const override;

 protected:
  Extent extent(std::size_t i) const override { return {offset_ + i * rows_.row_bytes, rows_.row_bytes}; }

 private:
  std::uint64_t offset_;
  Rows rows_;
};

}  // namespace lockstep::pack
