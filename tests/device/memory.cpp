#include "tests/device/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace lockstep::simulated {
namespace {

constexpr std::size_t kReserved = std::size_t{1} << 40;  // addresses, which cost nothing

std::size_t round_up(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

void Memory::reserve() {
  const int file = ::memfd_create("simulated-device", MFD_CLOEXEC);
  if (file < 0) return;
  if (::ftruncate(file, kReserved) == 0) {
    void* const addresses = ::mmap(nullptr, kReserved, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* const pages =
        ::mmap(nullptr, kReserved, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (addresses != MAP_FAILED && pages != MAP_FAILED) {
      addresses_ = static_cast<std::byte*>(addresses);
      pages_ = static_cast<std::byte*>(pages);
    }
  }
  ::close(file);
}

void* Memory::allocate(std::size_t bytes, int device) {
  if (addresses_ == nullptr) reserve();
  const std::size_t length = std::max<std::size_t>(bytes, 1);
  if (addresses_ == nullptr || length > kReserved - used_) return nullptr;
  std::byte* const address = addresses_ + used_;
  std::byte* const pages = pages_ + used_;
  used_ += round_up(length);
  std::memset(pages, kPoison, length);
  blocks_[address] = {length, device, pages, false};
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
  mark_freed(address);
  discard(address);
}

void Memory::mark_freed(const void* address) {
  blocks_.find(static_cast<const std::byte*>(address))->second.freed = true;
}

void Memory::discard(const void* address) {
  const auto& [begin, block] = *blocks_.find(static_cast<const std::byte*>(address));
  if (block.device >= 0) {
    ::madvise(block.pages, round_up(block.bytes), MADV_REMOVE);
  } else {
    ::mmap(const_cast<std::byte*>(begin), block.bytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  }
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
