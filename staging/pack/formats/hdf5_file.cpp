#include "staging/pack/formats/hdf5_file.h"

#include <cstring>
#include <string>

#include "common/error.h"
#include "staging/pack/formats/data_file.h"

namespace lockstep::pack {
namespace {

constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
constexpr std::size_t kSuperblock = 64;

/// Where the superblock holds the address of the file's end.
std::size_t end_at(unsigned version) {
  if (version == 0) return 40;
  return version == 1 ? 44 : 28;
}

using ReadSome = std::function<std::string(std::uint64_t offset, std::size_t bytes)>;

/// The superblock; "" if the file has none.
std::string superblock_of(std::uint64_t size, const ReadSome& read_some) {
  // A user block of 512, 1024, 2048, … bytes may come first.
  for (std::uint64_t begin = 0; begin < size; begin = begin == 0 ? 512 : 2 * begin) {
    std::string block = read_some(begin, kSuperblock);
    if (block.starts_with(kSignature)) return block;
  }
  return {};
}

}  // namespace

void check_hdf5(const std::filesystem::path& file) {
  const DataFile data(file);
  (void)check_hdf5(
      data.size(), [&](std::uint64_t offset, std::size_t bytes) { return data.read_some(offset, bytes); },
      file.string());
}

std::optional<std::uint64_t> check_hdf5(
    std::uint64_t size, const std::function<std::string(std::uint64_t offset, std::size_t bytes)>& read_some,
    const std::string& name) {
  const std::string block = superblock_of(size, read_some);
  if (block.empty()) fail("{}: not an HDF5 file", name);
  const auto version = static_cast<unsigned char>(block.size() > 8 ? block[8] : 0);
  const std::size_t address_bytes =
      static_cast<unsigned char>(block.size() > 13 ? block[version < 2 ? 13 : 9] : 0);
  if (block.size() < kSuperblock - 12 || version > 3 || address_bytes != sizeof(std::uint64_t))
    return {};  // libhdf5 decides
  std::uint64_t end = 0;
  std::memcpy(&end, block.data() + end_at(version), sizeof(end));
  if (size < end) fail("{}: truncated to {} bytes, but its header says {}", name, size, end);
  return end;
}

void refuse_open_hdf5(const std::filesystem::path& file) {
  constexpr std::size_t kVersionAt = 8;
  constexpr std::size_t kFlagsAt = 11;
  const DataFile data(file);
  const std::string block = superblock_of(
      data.size(), [&](std::uint64_t offset, std::size_t bytes) { return data.read_some(offset, bytes); });
  if (block.size() <= kFlagsAt || block[kVersionAt] < 3 || (block[kFlagsAt] & 0x05) == 0) return;
  fail(
      "{}: the program that wrote it has not closed it: if it still runs, wait; if it was killed, run h5clear -s {}, and check the data",
      file.string(), file.string());
}

}  // namespace lockstep::pack
