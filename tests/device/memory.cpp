#include "tests/device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace lockstep::simulated {

void* Memory::allocate(std::size_t bytes, int device) {
  const int file = ::memfd_create("simulated-device", MFD_CLOEXEC);
  if (file < 0) return nullptr;
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  void* address = MAP_FAILED;
  void* pages = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(length)) == 0) {
    address = ::mmap(nullptr, length, PROT_NONE, MAP_SHARED, file, 0);
    pages = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  ::close(file);
  if (address == MAP_FAILED || pages == MAP_FAILED) return nullptr;
  std::memset(pages, kPoison, length);
  blocks_[static_cast<std::byte*>(address)] = {length, device, static_cast<std::byte*>(pages), false};
  return address;
}

void* Memory::allocate_host(std::size_t bytes) {
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  void* pages = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  std::memset(pages, kPoison, length);
  blocks_[static_cast<std::byte*>(pages)] = {length, -1, static_cast<std::byte*>(pages), false};
  return pages;
}

const Block* Memory::find(const void* address) const {
  const auto found = blocks_.find(static_cast<const std::byte*>(address));
  return found == blocks_.end() || found->second.freed ? nullptr : &found->second;
}

void Memory::free(const void* address) {
  const auto found = blocks_.find(static_cast<const std::byte*>(address));
  Block& block = found->second;
  block.freed = true;
  if (block.device >= 0) ::munmap(block.pages, block.bytes);
  // The address stays reserved, so that a late use is found.
  ::mmap(const_cast<std::byte*>(found->first), block.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  block.pages = nullptr;
}

const Block* Memory::containing(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto after = blocks_.upper_bound(byte);
  if (after == blocks_.begin()) return nullptr;
  --after;
  return byte < after->first + after->second.bytes ? &after->second : nullptr;
}

std::byte* Memory::reachable(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  auto after = blocks_.upper_bound(byte);
  if (after == blocks_.begin()) return const_cast<std::byte*>(byte);
  --after;
  const auto& [begin, block] = *after;
  return byte < begin + block.bytes ? block.pages + (byte - begin) : const_cast<std::byte*>(byte);
}

}  // namespace lockstep::simulated
