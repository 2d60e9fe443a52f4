// Fuzzes the parser of TFRecord: with the input, and with the input after correcting all checksums, since no
// mutation would make them correct.

#include <cstring>
#include <vector>

#include "common/crc32c.h"
#include "staging/pack/formats/record_scan.h"
#include "tests/fuzz/fuzz_input.h"

using namespace lockstep;
using namespace lockstep::pack;

namespace {

void scan(std::span<const std::byte> bytes) {
  fuzz::run([&] {
    std::uint64_t end = 0;
    scan_tfrecord([rest = bytes]() mutable { return std::exchange(rest, {}); }, bytes.size(), "fuzzed",
                  [&](const Record& record) {
                    fuzz::require(record.begin == end && record.pieces.size() == 1);
                    end = record.pieces[0].offset + record.pieces[0].bytes + 4;
                    fuzz::require(end <= bytes.size());
                  });
    fuzz::require(end == bytes.size());
  });
}

/// Corrects the checksums of every record that fits into the bytes.
void correct_checksums(std::span<std::byte> rest) {
  const auto write = [](std::span<std::byte> at, std::span<const std::byte> of) {
    const std::uint32_t crc = masked_crc32c(crc32c(of));
    std::memcpy(at.data(), &crc, sizeof(crc));
  };
  while (rest.size() >= 16) {
    std::uint64_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    write(rest.subspan(8, 4), rest.first(8));
    if (length > rest.size() - 16) return;
    write(rest.subspan(12 + length, 4), rest.subspan(12, length));
    rest = rest.subspan(16 + length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  scan(fuzz::bytes_of(data, size));
  const auto bytes = fuzz::bytes_of(data, size);
  std::vector<std::byte> good(bytes.begin(), bytes.end());
  correct_checksums(good);
  scan(good);
  return 0;
}
