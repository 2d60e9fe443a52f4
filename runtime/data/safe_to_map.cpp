#include "runtime/data/safe_to_map.h"

#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "common/error.h"

namespace lockstep::data {
namespace {

// Of statfs(2): file systems that lie on this node's disks or in its memory.
constexpr std::array<std::uint64_t, 8> kLocal = {
    0xef53,      // ext2, ext3, ext4
    0x58465342,  // xfs
    0x9123683e,  // btrfs
    0x01021994,  // tmpfs
    0x2fc12fc1,  // zfs
    0xf2f52010,  // f2fs
    0x794c7630,  // overlayfs
    0x858458f6,  // ramfs
};
constexpr std::size_t kLookedAt = 16;

// The file whose mapping holds this address.
std::optional<std::string> file_at(std::uintptr_t address) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    const char* const last = line.data() + line.size();
    const auto first = std::from_chars(line.data(), last, begin, 16);
    if (first.ec != std::errc() || first.ptr == last) continue;
    std::from_chars(first.ptr + 1, last, end, 16);
    if (address < begin || address >= end) continue;
    const auto name = line.find('/');
    if (name == std::string::npos) return std::nullopt;
    return line.substr(name);
  }
  return std::nullopt;
}

bool nobody_truncates(const std::string& file) {
  struct stat status {};
  struct statfs system {};
  if (::stat(file.c_str(), &status) != 0 || ::statfs(file.c_str(), &system) != 0) return false;
  const auto type = static_cast<std::uint64_t>(system.f_type) & 0xffffffffU;
  return (status.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0 &&
         std::find(kLocal.begin(), kLocal.end(), type) != kLocal.end();
}

}  // namespace

bool safe_to_map(const pack::Reader& reader) {
  if (!reader.can_view() || reader.size() == 0) return false;
  std::string known;
  for (std::size_t i = 0; i < kLookedAt; ++i) {
    const std::size_t sample = i * (reader.size() - 1) / (kLookedAt - 1);
    try {
      const auto bytes = reader.unchecked_view(sample);
      if (bytes.empty()) continue;
      const auto file = file_at(reinterpret_cast<std::uintptr_t>(bytes.data()));
      if (!file) return false;
      if (*file == known) continue;
      if (!nobody_truncates(*file)) return false;
      known = *file;
    } catch (const Error&) {
      return false;
    }
  }
  return !known.empty();
}

}  // namespace lockstep::data
