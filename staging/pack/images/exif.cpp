#include "staging/pack/images/exif.h"

#include <cstdint>
#include <cstring>
#include <string_view>

namespace lockstep::pack {
namespace {

using Bytes = std::span<const std::byte>;

constexpr int kUpright = 1;

/// The big-endian number of `count` bytes at `at`, or little-endian; 0 where the data end before.
std::uint32_t number_at(Bytes bytes, std::size_t at, std::size_t count, bool big = true) {
  std::uint32_t number = 0;
  if (at > bytes.size() || count > bytes.size() - at) return 0;
  for (std::size_t i = 0; i < count; ++i)
    number = number << 8U | std::to_integer<std::uint32_t>(bytes[at + (big ? i : count - 1 - i)]);
  return number;
}

bool starts_with(Bytes bytes, std::string_view text) {
  return bytes.size() >= text.size() && std::memcmp(bytes.data(), text.data(), text.size()) == 0;
}

Bytes after(Bytes bytes, std::size_t count) {
  return bytes.subspan(count < bytes.size() ? count : bytes.size());
}

/// In a TIFF header and its first directory.
int orientation_in(Bytes tiff) {
  constexpr std::uint32_t kTag = 0x0112;
  constexpr std::size_t kEntryBytes = 12;
  const bool big = starts_with(tiff, "MM");
  if (!big && !starts_with(tiff, "II")) return kUpright;
  const std::size_t directory = number_at(tiff, 4, 4, big);
  const std::uint32_t entries = number_at(tiff, directory, 2, big);
  for (std::uint32_t i = 0; i < entries; ++i) {
    const std::size_t entry = directory + 2 + i * kEntryBytes;
    if (entry >= tiff.size()) break;
    if (number_at(tiff, entry, 2, big) != kTag) continue;
    const std::uint32_t type =
        number_at(tiff, entry + 2, 2, big);  // some programs write a number of 1 or 4 bytes
    const std::uint32_t value = number_at(tiff, entry + 8, type == 1 || type == 4 ? type : 2, big);
    return value >= 1 && value <= 8 ? static_cast<int>(value) : kUpright;
  }
  return kUpright;
}

int in_jpeg(Bytes left) {
  constexpr std::uint32_t kApp1 = 0xe1;
  constexpr std::uint32_t kScan = 0xda;
  constexpr std::string_view kExif("Exif\0\0", 6);
  while (number_at(left, 0, 1) == 0xff) {
    const std::uint32_t marker = number_at(left, 1, 1);
    const std::uint32_t length = number_at(left, 2, 2);
    if (marker == 0xff) {  // padding
      left = after(left, 1);
      continue;
    }
    const Bytes content = after(left, 4);
    if (marker == kApp1 && starts_with(content, kExif)) return orientation_in(after(content, kExif.size()));
    if (marker == kScan || length < 2) break;
    left = after(left, 2 + length);
  }
  return kUpright;
}

int in_png(Bytes left) {
  constexpr std::size_t kFrame = 12;  // length, type, checksum
  while (left.size() > kFrame) {
    const std::uint32_t length = number_at(left, 0, 4);
    const Bytes type = after(left, 4);
    if (starts_with(type, "eXIf")) return orientation_in(after(type, 4));
    left = after(left, kFrame + length);
  }
  return kUpright;
}

}  // namespace

int exif_orientation(Bytes packed) {
  if (starts_with(packed, "\xff\xd8")) return in_jpeg(packed.subspan(2));
  if (starts_with(packed, "\x89PNG\r\n\x1a\n")) return in_png(packed.subspan(8));
  return kUpright;
}

}  // namespace lockstep::pack
