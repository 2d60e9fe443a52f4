#include "staging/pack/formats/rows_reader.h"

#include "common/error.h"

namespace lockstep::pack {
namespace {

/// A product; throws Error if it overflows.
std::uint64_t times(std::uint64_t a, std::uint64_t b, const std::string& name) {
  std::uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) fail("{}: its shape is larger than any file", name);
  return product;
}

}  // namespace

Rows rows_of(const std::vector<std::uint64_t>& shape, std::uint64_t item_bytes, const std::string& name) {
  Rows rows{.rows = 1, .row_bytes = item_bytes};
  if (shape.size() > 1) rows.rows = shape.front();
  for (std::size_t axis = shape.size() > 1 ? 1 : 0; axis < shape.size(); ++axis)
    rows.row_bytes = times(rows.row_bytes, shape[axis], name);
  if (rows.rows == 0 || rows.row_bytes == 0) throw NoSamples(fmt::format("{} holds no samples", name));
  return rows;
}

TokenType tokens_of(TokenType type, std::size_t axes) {
  const bool integers = type != TokenType::f32 && type != TokenType::f64;
  return integers && (axes == 1 || axes == 2) ? type : TokenType::none;
}

RowsReader::RowsReader(const std::filesystem::path& folder, std::string file_name, std::uint64_t offset,
                       Rows rows, TokenType type)
    : ExtentReader(folder, std::move(file_name), rows.rows, type), offset_(offset), rows_(rows) {
  const std::uint64_t size = file().size();
  if (offset > size || rows.rows > (size - offset) / rows.row_bytes) {
    const std::uint64_t complete = offset > size ? 0 : (size - offset) / rows.row_bytes;
    fail("{}: truncated to {} bytes; the first lost sample is {} at offset {}", file().path().string(), size,
         complete, offset + complete * rows.row_bytes);
  }
}

void RowsReader::verify(const ReadProgress& progress) const {
  read_whole_file(progress);
}

}  // namespace lockstep::pack
