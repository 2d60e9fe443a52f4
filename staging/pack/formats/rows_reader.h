// Samples of equal length that lie one after the other in a file: rows of an array.
//
// Threads: as Reader.
#pragma once

#include <string>
#include <utility>

#include "staging/pack/formats/extent_reader.h"
#include "staging/pack/formats/npy_header.h"

namespace lockstep::pack {

class RowsReader : public ExtentReader {
 public:
  /// Throws Error where the rows reach beyond the file's end.
  RowsReader(const std::filesystem::path& folder, std::string file, std::uint64_t offset, Rows rows,
             TokenType type);

  /// An array holds no digests: what can be checked is that all of it can be read.
  void verify() const override;

 protected:
  Extent extent(std::size_t i) const override { return {offset_ + i * rows_.row_bytes, rows_.row_bytes}; }

 private:
  std::uint64_t offset_;
  Rows rows_;
};

}  // namespace lockstep::pack
