#include "staging/pack/formats/record_scan.h"

#include <array>
#include <cstring>
#include <vector>

#include "common/crc32c.h"
#include "common/error.h"
#include "staging/pack/digest.h"

namespace lockstep::pack {
namespace {

/// A record, for error messages.
struct RecordPlace {
  const std::filesystem::path& file;
  std::size_t record;
  std::uint64_t offset;

  template <typename... Args>
  [[noreturn]] void refuse(fmt::format_string<Args...> format, Args&&... args) const {
    fail("{}, sample {}, offset {}: {}", file.string(), record, offset,
         fmt::format(format, std::forward<Args>(args)...));
  }
};

template <typename T>
T number_in(std::span<const std::byte> bytes) {
  T number{};
  std::memcpy(&number, bytes.data(), sizeof(T));
  return number;
}

}  // namespace

void scan_tfrecord(const NextBlock& next, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each) {
  constexpr std::uint64_t kLength = sizeof(std::uint64_t);
  constexpr std::uint64_t kChecksum = sizeof(std::uint32_t);
  Cursor cursor(next, size);
  Hasher hasher(Hasher::Width::bits64);
  for (std::size_t number = 0; cursor.left() > 0; ++number) {
    const RecordPlace where{name, number, cursor.offset()};
    if (cursor.left() < kLength + kChecksum)
      where.refuse("only {} bytes are left, too few for a record: the file was truncated", cursor.left());
    std::array<std::byte, kLength + kChecksum> header{};
    cursor.take(header);
    const auto length_bytes = std::span(header).first(kLength);
    if (masked_crc32c(crc32c(length_bytes)) != number_in<std::uint32_t>(std::span(header).last(kChecksum)))
      where.refuse("the checksum of the length does not match: the file is damaged, or not a TFRecord file");
    const auto length = number_in<std::uint64_t>(length_bytes);
    if (cursor.left() < kChecksum || length > cursor.left() - kChecksum)
      where.refuse("its {} bytes extend past the end of the file at {}: the file was truncated", length,
                   size);
    const Piece payload{cursor.offset(), length};
    std::uint32_t crc = 0;
    hasher.reset();
    for (std::uint64_t left = length; left > 0;) {
      const auto piece = cursor.some(left);
      crc = crc32c(piece, crc);
      hasher.update(piece);
      left -= piece.size();
    }
    std::array<std::byte, kChecksum> stored{};
    cursor.take(stored);
    if (masked_crc32c(crc) != number_in<std::uint32_t>(stored))
      where.refuse("the checksum of its {} bytes does not match: the file is damaged", length);
    each({.begin = where.offset, .pieces = std::span(&payload, 1), .xxh3 = hasher.value()});
  }
}

void scan_recordio(const NextBlock& next, std::uint64_t size, const std::filesystem::path& name,
                   const EachRecord& each) {
  constexpr std::uint64_t kHeader = 8;
  enum Flag : std::uint32_t { whole = 0, first = 1, middle = 2, last = 3 };
  Cursor cursor(next, size);
  Hasher hasher(Hasher::Width::bits64);
  std::vector<Piece> pieces;
  std::uint64_t begin = 0;
  for (std::size_t number = 0; cursor.left() > 0;) {
    const RecordPlace where{name, number, cursor.offset()};
    if (cursor.left() < kHeader)
      where.refuse("only {} bytes are left, too few for a record: the file was truncated", cursor.left());
    std::array<std::byte, kHeader> header{};
    cursor.take(header);
    if (number_in<std::uint32_t>(header) != kRecordMagic)
      where.refuse("no record begins here: the file is damaged, or not a RecordIO file");
    const auto word = number_in<std::uint32_t>(std::span(header).last(4));
    const std::uint32_t flag = word >> 29;
    const std::uint64_t length = word & ((1U << 29) - 1);
    const std::uint64_t padded = (length + 3) / 4 * 4;
    if (padded > cursor.left())
      where.refuse("its {} bytes extend past the end of the file at {}: the file was truncated", length,
                   size);
    const bool begins = flag == whole || flag == first;
    if (flag > last || begins != pieces.empty())
      where.refuse("a piece with flag {} is not allowed here: the file is damaged", flag);
    if (begins) {
      begin = where.offset;
      hasher.reset();
    } else {
      hasher.update(std::as_bytes(std::span(&kRecordMagic, 1)));
    }
    pieces.push_back({cursor.offset(), length});
    for (std::uint64_t left = length; left > 0;) {
      const auto piece = cursor.some(left);
      hasher.update(piece);
      left -= piece.size();
    }
    std::array<std::byte, 3> padding{};
    cursor.take(std::span(padding).first(padded - length));
    if (flag == first || flag == middle) continue;
    each({.begin = begin, .pieces = pieces, .xxh3 = hasher.value()});
    pieces.clear();
    ++number;
  }
  if (!pieces.empty())
    fail("{}, offset {}: the last pieces of a record are missing: the file was truncated", name.string(),
         begin);
}

}  // namespace lockstep::pack
