#include "staging/pack/compression.h"

#include <fmt/format.h>

#include <array>

#include "common/leaf/text.h"
#include "staging/pack/member_name.h"

namespace lockstep::pack {
namespace {

using std::string_view_literals::operator""sv;

/// The names are also those of the programs.
struct Compression {
  std::string_view name;
  std::string_view magic;
};
constexpr std::array kCompressions = {Compression{"gzip", "\x1f\x8b"sv},
                                      Compression{"zstd", "\x28\xb5\x2f\xfd"sv},
                                      Compression{"xz", "\xfd\x37zXZ\0"sv}, Compression{"bzip2", "BZh"sv},
                                      Compression{"lz4", "\x04\x22\x4d\x18"sv}};

}  // namespace

std::string_view compression_of(std::string_view first_bytes) {
  for (const Compression& compression : kCompressions) {
    if (first_bytes.starts_with(compression.magic)) return compression.name;
  }
  return {};
}

bool may_be_zlib(std::string_view first_bytes) {
  return first_bytes.size() > 1 && first_bytes[0] == 'x' &&
         (0x7800U + static_cast<unsigned char>(first_bytes[1])) % 31 == 0;
}

std::string_view unpacked_name(std::string_view name) {
  constexpr std::array kEnds = {".gz"sv, ".gzip"sv, ".zst"sv, ".zstd"sv, ".xz"sv,   ".bz2"sv, ".lz4"sv,
                                ".z"sv,  ".zlib"sv, ".br"sv,  ".lz"sv,   ".lzma"sv, ".lzo"sv, ".snappy"sv};
  const std::string lower = lower_case(name);
  for (const std::string_view end : kEnds) {
    if (lower.ends_with(end) && lower.size() > end.size()) return name.substr(0, name.size() - end.size());
  }
  return name;
}

std::string how_to_unpack(std::string_view compression, std::string_view file, std::string_view into) {
  return fmt::format("unpack it ({} -dc {} > {})", compression, shell_word(file), into);
}

}  // namespace lockstep::pack
