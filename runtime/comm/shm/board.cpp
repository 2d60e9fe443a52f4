#include "runtime/comm/shm/board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>
#include <new>

namespace lockstep::comm::shm {

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
                  std::atomic<std::uint64_t>::is_always_lock_free,
              "processes share these");

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::broadcast:
      return "broadcast";
    case Kind::all_gather:
      return "all_gather";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::barrier:
      return "barrier";
    case Kind::end:
      return "the end";
  }
  return "?";
}

Board::Board(std::shared_ptr<void> memory, SegmentName name)
    : memory_(std::move(memory)), name_(name), bell_(static_cast<Bell*>(memory_.get())) {
}

Board Board::make(int ranks) {
  auto memory = allocate(sizeof(Bell) + static_cast<std::size_t>(ranks) * sizeof(RankArea));
  const SegmentName name = find(memory.get(), 1)->segment;
  new (memory.get()) Bell;
  Board board(std::move(memory), name);
  for (int rank = 0; rank < ranks; ++rank) new (&board.of(rank)) RankArea;
  return board;
}

Board Board::open(const SegmentName& name) {
  return {map(name), name};
}

SegmentName Board::name() const {
  return name_;
}

RankArea* Board::areas() const {
  return reinterpret_cast<RankArea*>(bell_ + 1);
}

void Board::ring() const {
  bell_->rung.fetch_add(1, std::memory_order_seq_cst);
  if (bell_->sleepers.load(std::memory_order_seq_cst) == 0) return;
  ::syscall(SYS_futex, &bell_->rung, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Board::sleep(std::uint32_t heard, std::chrono::nanoseconds at_most) const {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(at_most);
  const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = (at_most - seconds).count()};
  bell_->sleepers.fetch_add(1, std::memory_order_seq_cst);
  ::syscall(SYS_futex, &bell_->rung, FUTEX_WAIT, heard, &timeout, nullptr, 0);
  bell_->sleepers.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace lockstep::comm::shm
