// Fuzzes the parser of the header of .npy files.

#include "staging/pack/formats/npy_header.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return fuzz::run([&] {
    const NpyHeader header = parse_npy_header(fuzz::text_of(data, size), "fuzzed");
    fuzz::require(header.data_offset <= size);
    const Rows rows = rows_of(header.shape, header.item_bytes, "fuzzed");
    fuzz::require(rows.rows * rows.row_bytes == header.data_bytes());
  });
}
