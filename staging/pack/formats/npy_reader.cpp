// Reads the rows of a .npy file.

#include "staging/pack/formats/format_readers.h"
#include "staging/pack/formats/npy_header.h"
#include "staging/pack/formats/rows_reader.h"

namespace lockstep::pack {

std::unique_ptr<Reader> open_npy(const std::filesystem::path& folder, const std::string& file) {
  check_npy(folder / file);
  const DataFile data(folder / file);
  const NpyHeader header = parse_npy_header(data.read_some(0, kNpyHeaderBytes), data.path());
  const Rows rows = rows_of(header.shape, header.item_bytes, data.path().string());
  return std::make_unique<RowsReader>(folder, file, header.data_offset, rows,
                                      tokens_of(header.type, header.shape.size()));
}

}  // namespace lockstep::pack
