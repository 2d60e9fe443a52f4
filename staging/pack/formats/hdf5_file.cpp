#include "staging/pack/formats/hdf5_file.h"

#include <cstring>
#include <string>

#include "common/error.h"
#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr std::size_t kSuperblock = 64;

/// Where the address of the file's end stands, behind the signature.
std::size_t end_at(unsigned version) {
  if (version == 0) return 40;
  return version == 1 ? 44 : 28;
}

}  // namespace

void check_hdf5(const std::filesystem::path& file) {
  const DataFile data(file);
  // What a user put in front may take 512, 1024, 2048, … bytes.
  for (std::uint64_t begin = 0; begin < data.size(); begin = begin == 0 ? 512 : 2 * begin) {
    const std::string block = data.read_some(begin, kSuperblock);
    if (!block.starts_with(kSignature)) continue;
    const auto version = static_cast<unsigned char>(block.size() > 8 ? block[8] : 0);
    const std::size_t address_bytes =
        static_cast<unsigned char>(block.size() > 13 ? block[version < 2 ? 13 : 9] : 0);
    if (block.size() < kSuperblock - 12 || version > 3 || address_bytes != sizeof(std::uint64_t))
      return;  // the library decides
    std::uint64_t end = 0;
    std::memcpy(&end, block.data() + end_at(version), sizeof(end));
    if (data.size() < end)
      fail("{}: truncated to {} bytes, {} expected by its own header", file.string(), data.size(), end);
    return;
  }
  fail("{}: not an HDF5 file", file.string());
}

}  // namespace lockstep::pack
