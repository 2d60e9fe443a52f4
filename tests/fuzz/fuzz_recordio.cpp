// Fuzzes the parsers of RecordIO's records and of the .idx beside them.

#include "staging/pack/formats/record_scan.h"
#include "staging/pack/formats/recordio_keys.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto bytes = fuzz::bytes_of(data, size);
  fuzz::run([&] {
    std::uint64_t end = 0;
    scan_recordio([rest = bytes]() mutable { return std::exchange(rest, {}); }, size, "fuzzed",
                  [&](const Record& record) {
                    fuzz::require(record.begin == end && !record.pieces.empty());
                    for (const Piece& piece : record.pieces) {
                      fuzz::require(piece.offset == end + 8);
                      end = piece.offset + (piece.bytes + 3) / 4 * 4;
                    }
                    fuzz::require(end <= size);
                  });
    fuzz::require(end == size);
  });
  return fuzz::run([&] { RecordioKeys::parse(fuzz::text_of(data, size), "fuzzed"); });
}
