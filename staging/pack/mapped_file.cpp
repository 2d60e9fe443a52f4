#include "staging/pack/mapped_file.h"

#include <sys/mman.h>

#include "common/error.h"

namespace lockstep::pack {

MappedFile::MappedFile(int fd, std::size_t size, const std::filesystem::path& path) {
  if (size == 0) return;  // an empty mapping is an error of mmap's
  void* address = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) fail_errno("cannot map {}", path.string());
  data_ = {static_cast<const std::byte*>(address), size};
}

MappedFile::~MappedFile() {
  if (!data_.empty()) ::munmap(const_cast<std::byte*>(data_.data()), data_.size());
}

}  // namespace lockstep::pack
