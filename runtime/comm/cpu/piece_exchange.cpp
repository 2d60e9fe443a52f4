#include "runtime/comm/cpu/piece_exchange.h"

#include <algorithm>
#include <cstring>

namespace lockstep::comm::cpu {
namespace {

// So large that a rank seldom waits, and so small that the buffers of a rank stay in the second-level cache.
constexpr std::size_t kPieceBytes = std::size_t{512} << 10;
constexpr std::uint64_t kBuffers = 4;

}  // namespace

PieceExchange::PieceExchange(const OperationSlots& slots, int local_rank, int ranks)
    : slots_(slots),
      rank_(local_rank),
      ranks_(ranks),
      shared_(slots.area(local_rank).ring),
      buffers_(static_cast<std::size_t>(ranks)) {
}

std::size_t PieceExchange::elements() const {
  return kPieceBytes / size_of(buffer_.type);
}

void PieceExchange::start(Buffer buffer, const ScaledOp& scaled) {
  buffer_ = buffer;
  scaled_ = scaled;
  begin_ = end_;
  end_ += (buffer.count + elements() - 1) / elements();
  auto& memory = buffers_[static_cast<std::size_t>(rank_)];
  if (memory) return;
  memory = shm::allocate(kBuffers * kPieceBytes);
  shared_.memory = shm::find(memory.get(), 1)->segment;  // read after the first piece is filled
}

PieceExchange::Share PieceExchange::share_of(int rank, std::uint64_t piece) const {
  const std::size_t count =
      std::min(elements(), buffer_.count - static_cast<std::size_t>(piece - begin_) * elements());
  const auto part = static_cast<std::size_t>(rank);
  const auto parts = static_cast<std::size_t>(ranks_);
  const std::size_t begin = part_begin(count, part, parts, buffer_.type);
  return {begin, part_begin(count, part + 1, parts, buffer_.type) - begin};
}

std::byte* PieceExchange::mine(std::uint64_t piece, const Share& share) const {
  const std::size_t element = static_cast<std::size_t>(piece - begin_) * elements() + share.begin;
  return static_cast<std::byte*>(buffer_.data) + element * size_of(buffer_.type);
}

std::byte* PieceExchange::buffer_of(int rank, std::uint64_t piece, const Share& share) {
  auto& memory = buffers_[static_cast<std::size_t>(rank)];
  if (!memory) memory = shm::map(slots_.area(rank).ring.memory);
  return static_cast<std::byte*>(memory.get()) + piece % kBuffers * kPieceBytes +
         share.begin * size_of(buffer_.type);
}

bool PieceExchange::all_have(std::atomic<std::uint64_t> RingProgress::*passed, std::uint64_t count) const {
  for (int rank = 0; rank < ranks_; ++rank) {
    if ((slots_.area(rank).ring.*passed).load(std::memory_order_acquire) < count) return false;
  }
  return true;
}

bool PieceExchange::advance(bool all) {
  bool moved = false;
  do {
    if (taken_ < summed_ && all_have(&RingProgress::summed, taken_ + 1)) {
      take();
    } else if (summed_ < filled_ && all_have(&RingProgress::filled, summed_ + 1)) {
      sum();
    } else if (filled_ < end_ &&
               (filled_ < kBuffers || all_have(&RingProgress::taken, filled_ + 1 - kBuffers))) {
      fill();
    } else {
      return moved;
    }
    slots_.notify_all();
    moved = true;
  } while (all);
  return moved;
}

void PieceExchange::fill() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const Share share = share_of(rank, filled_);
    std::memcpy(buffer_of(rank_, filled_, share), mine(filled_, share), share.count * size_of(buffer_.type));
  }
  shared_.filled.store(++filled_, std::memory_order_release);
}

void PieceExchange::sum() {
  const Share share = share_of(rank_, summed_);
  std::byte* own = mine(summed_, share);
  std::vector<const void*> inputs;
  for (int rank = 0; rank < ranks_; ++rank) {
    inputs.push_back(rank == rank_ ? own : buffer_of(rank, summed_, share));
  }
  void* const results[] = {own, buffer_of(rank_, summed_, share)};
  reduce_to_all(inputs, results, share.count, buffer_.type, scaled_);
  shared_.summed.store(++summed_, std::memory_order_release);
}

void PieceExchange::take() {
  for (int rank = 0; rank < ranks_; ++rank) {
    if (rank == rank_) continue;
    const Share share = share_of(rank, taken_);
    std::memcpy(mine(taken_, share), buffer_of(rank, taken_, share), share.count * size_of(buffer_.type));
  }
  shared_.taken.store(++taken_, std::memory_order_release);
}

}  // namespace lockstep::comm::cpu
