#include "runtime/comm/shm/staging_pool.h"

#include <algorithm>
#include <bit>

#include "runtime/comm/shm/segment.h"

namespace lockstep::comm::shm {
namespace {

// Unused memory above this is freed.
constexpr std::size_t kMaxKept = std::size_t{64} << 20;
constexpr std::size_t kMinBlock = std::size_t{64} << 10;

// Rounds up, so that a block fits later operations too.
std::size_t rounded(std::size_t bytes) {
  constexpr std::size_t kStep = std::size_t{1} << 20;
  if (bytes <= 8 * kStep) return std::bit_ceil(std::max(bytes, kMinBlock));
  return (bytes + kStep - 1) / kStep * kStep;
}

}  // namespace

std::shared_ptr<void> StagingPool::take(std::size_t bytes) {
  const auto fits = [bytes](const FreeBlock& block) { return block.bytes >= bytes; };
  const auto found = std::find_if(free_.begin(), free_.end(), fits);
  if (found == free_.end()) return allocate(rounded(bytes));
  auto memory = std::move(found->memory);
  free_.erase(found);
  return memory;
}

void StagingPool::give_back(std::shared_ptr<void> memory) {
  const std::size_t bytes = find(memory.get(), 1)->segment.bytes;
  const auto larger = [bytes](const FreeBlock& block) { return block.bytes >= bytes; };
  free_.insert(std::find_if(free_.begin(), free_.end(), larger), {std::move(memory), bytes});  // by size
  std::size_t kept = 0;
  for (const auto& block : free_) kept += block.bytes;
  while (kept > kMaxKept) {
    kept -= free_.back().bytes;
    free_.pop_back();
  }
}

}  // namespace lockstep::comm::shm
