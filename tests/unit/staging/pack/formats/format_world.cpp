#include "tests/unit/staging/pack/formats/format_world.h"

#include <array>

#include "common/crc32c.h"

namespace lockstep::staging_test {
namespace {

std::string checksum(const std::string& bytes) {
  return bytes_of(masked_crc32c(crc32c(std::as_bytes(std::span(bytes)))));
}

}  // namespace

std::string megatron_index(int type_code, const std::vector<std::int32_t>& lengths) {
  constexpr std::array<std::int64_t, 9> kSizes = {0, 1, 1, 2, 4, 8, 8, 4, 2};
  std::string index = std::string("MMIDIDX\0\0", 9) + bytes_of(std::uint64_t{1}) +
                      bytes_of(static_cast<std::uint8_t>(type_code)) +
                      bytes_of(std::uint64_t{lengths.size()}) + bytes_of(std::uint64_t{lengths.size() + 1});
  std::string offsets;
  std::string documents = bytes_of(std::int64_t{0});
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    index += bytes_of(lengths[i]);
    offsets += bytes_of(offset);
    documents += bytes_of(static_cast<std::int64_t>(i + 1));
    offset += lengths[i] * kSizes.at(static_cast<std::size_t>(type_code));
  }
  return index + offsets + documents;
}

std::string tfrecord(const std::vector<std::string>& records) {
  std::string file;
  for (const std::string& record : records) {
    const std::string length = bytes_of(std::uint64_t{record.size()});
    file.append(length).append(checksum(length)).append(record).append(checksum(record));
  }
  return file;
}

}  // namespace lockstep::staging_test
