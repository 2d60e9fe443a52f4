#include "runtime/comm/cpu/operation_slots.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <climits>
#include <ctime>
#include <new>
#include <thread>

#include "common/error.h"
#include "common/process.h"
#include "runtime/comm/failure.h"

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

std::string describe(const OperationRequest& request, std::string_view label) {
  std::string text = fmt::format("{} of {}", cpu::name_of(request.kind), label);
  if (request.step != 0) text += fmt::format(" in step {}", request.step);
  switch (request.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce_scatter:
      return text + fmt::format(" ({} × {}, {})", request.count, comm::name_of(request.type),
                                comm::name_of(request.op));
    case OperationKind::broadcast:
      return text +
             fmt::format(" ({} × {} from rank {})", request.count, comm::name_of(request.type), request.root);
    case OperationKind::all_gather:
      return text + fmt::format(" ({} × {} each)", request.count, comm::name_of(request.type));
    case OperationKind::exchange:
    case OperationKind::barrier:
    case OperationKind::end:
      return text;
  }
  return text;
}

void end_job_by_mismatch(const OperationSlots& slots, const RankInfo& place, int other,
                         std::uint64_t number) {
  // The first rank of the node prints. It may still be computing, so wait for it.
  if (place.local_rank != 0) std::this_thread::sleep_for(std::chrono::seconds(5));
  const auto what = [&](int local_rank) {
    const OperationSlot& slot = slots.slot(local_rank, number);
    return fmt::format("rank {} calls {}", slots.area(local_rank).world_rank,
                       describe(slot.request, slot.label));
  };
  end_job_once(fmt::format(
      "the ranks of {} call different operations: {}, but {}; every rank must call the same operations in the same order (docs/users/ddp.md)",
      place.node_name, what(0), what(other)));
}

void end_job_by_leaving(const OperationSlots& slots, const RankInfo& place, int left,
                        const std::string& operation) {
  end_job_once(fmt::format(
      "{} left World, or the group, before {}; every rank must call the same operations (docs/users/ddp.md)",
      rank_name(slots.area(left).world_rank, place.node_name), operation));
}

}  // namespace lockstep::comm::cpu
