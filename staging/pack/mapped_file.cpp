#include "staging/pack/mapped_file.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "common/error.h"

namespace lockstep::pack {

MappedFile::MappedFile(int fd, std::size_t size, const std::filesystem::path& path) {
  if (size == 0) return;  // mmap refuses an empty mapping
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail_errno("cannot map {}", path.string());
  data_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!data_.empty()) ::munmap(const_cast<std::byte*>(data_.data()), data_.size());
}

bool safe_to_map(const std::filesystem::path& file) {
  // The types, as statfs(2) gives them, of file systems on this node's disks or in its memory.
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
  struct stat status {};
  struct statfs system {};
  if (::stat(file.c_str(), &status) != 0 || ::statfs(file.c_str(), &system) != 0) return false;
  const auto type = static_cast<std::uint64_t>(system.f_type) & 0xffffffffU;
  return (status.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0 &&
         std::ranges::find(kLocal, type) != kLocal.end();
}

}  // namespace lockstep::pack
