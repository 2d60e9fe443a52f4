#include "runtime/comm/communicator.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

#include "common/error.h"

namespace lockstep::comm {

std::uint64_t duration_ns(std::span<const WorkHandle> works) {
  std::uint64_t begin = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t end = 0;
  for (const WorkHandle& work : works) {
    const WorkTimes times = work->times();
    begin = std::min(begin, std::max(times.began_ns, times.all_asked_ns));
    end = std::max(end, times.ended_ns);
  }
  return end > begin ? end - begin : 0;
}

void Communicator::check_peers(std::span<const PeerMessage> messages) const {
  for (const PeerMessage& message : messages) {
    if (message.peer < 0 || message.peer >= size() || message.peer == rank())
      fail_usage("rank {} cannot exchange a message with rank {}: ranks are 0 to {}", rank(), message.peer,
                 size() - 1);
  }
}

std::shared_ptr<void> Communicator::allocate(std::size_t bytes) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded == 0 ? kAlignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  std::memset(memory, 0, rounded);
  return {memory, std::free};
}

}  // namespace lockstep::comm
