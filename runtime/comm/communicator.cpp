#include "runtime/comm/communicator.h"

#include <cstdlib>
#include <cstring>
#include <new>

namespace lockstep::comm {

std::shared_ptr<void> Communicator::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {memory, std::free};
}

}  // namespace lockstep::comm
