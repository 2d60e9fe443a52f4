// The simulated devices' memory. The host cannot read or write at the addresses that the program gets; operations use a
// second mapping of the same pages. Addresses are never used twice.
//
// Threads: one at a time (the simulator's lock).
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace lockstep::simulated {

/// The bytes of memory that nothing has written yet, or that a running operation will write.
constexpr int kPoison = 0xFF;

struct Block {
  std::size_t bytes = 0;
  int device = -1;  ///< -1: page-locked host memory
  std::byte* pages = nullptr;
  bool freed = false;
};

class Memory {
 public:
  /// Null if there is not enough.
  void* allocate(std::size_t bytes, int device);
  void* allocate_host(std::size_t bytes);
  /// The block that begins at `address`; null if there is none, or it was freed.
  const Block* find(const void* address) const;
  /// The address stays reserved, so that a late use is found. Discards the bytes.
  void free(const void* address);
  /// As free(), but the bytes stay until discard().
  void mark_freed(const void* address);
  void discard(const void* address);

  /// The block that contains the address; null for the host's own memory. Freed blocks are found too.
  const Block* containing(const void* address) const;
  /// The address at which operations read and write; the same for the host's memory.
  std::byte* reachable(const void* address) const;

 private:
  void reserve();

  // All memory of all devices: one range of addresses for the program, and one for operations on the same pages.
  std::byte* addresses_ = nullptr;
  std::byte* pages_ = nullptr;
  std::size_t used_ = 0;
  std::map<const std::byte*, Block> blocks_;
};

}  // namespace lockstep::simulated
