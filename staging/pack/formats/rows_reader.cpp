#include "staging/pack/formats/rows_reader.h"

#include "common/error.h"

namespace lockstep::pack {

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
