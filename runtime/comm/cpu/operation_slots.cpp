#include "runtime/comm/cpu/operation_slots.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <ctime>
#include <new>

namespace lockstep::comm::cpu {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  std::atomic<std::uint64_t>::is_always_lock_free,
              "processes share them");

const char* name_of(OperationKind kind) {
  constexpr std::array<const char*, 7> kNames = {"all_reduce", "broadcast", "all_gather", "reduce_scatter",
                                                 "exchange",   "barrier",   "the end"};
  return kNames.at(static_cast<std::size_t>(kind));
}

OperationSlots::OperationSlots(std::shared_ptr<void> memory, const shm::SegmentHandle& segment)
    : memory_(std::move(memory)), segment_(segment), events_(static_cast<EventCount*>(memory_.get())) {
}

OperationSlots OperationSlots::create(int ranks) {
  auto memory = shm::allocate(sizeof(EventCount) + static_cast<std::size_t>(ranks) * sizeof(RankArea));
  const shm::SegmentHandle segment = shm::find(memory.get(), 1)->segment;
  new (memory.get()) EventCount;
  OperationSlots slots(std::move(memory), segment);
  for (int rank = 0; rank < ranks; ++rank) new (&slots.area(rank)) RankArea;
  return slots;
}

OperationSlots OperationSlots::open(const shm::SegmentHandle& segment) {
  return {shm::map(segment), segment};
}

void OperationSlots::notify_all() const {
  events_->events.fetch_add(1, std::memory_order_seq_cst);
  if (events_->sleepers.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &events_->events, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void OperationSlots::sleep(std::uint32_t seen, std::chrono::nanoseconds timeout) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec time{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  events_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &events_->events, FUTEX_WAIT, seen, &time, nullptr, 0);
  events_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace lockstep::comm::cpu
