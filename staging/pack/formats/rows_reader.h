// Reads the rows of an array as samples: they have equal lengths and follow each other in the file.
//
// Threads: as Reader.
#pragma once

#include <string>

#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/npy_header.h"

namespace lockstep::pack {

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
