#include "staging/transfer/copy/chunk_buffers.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace lockstep::transfer {
namespace {

std::size_t round_up(std::size_t bytes) {
  constexpr std::size_t kMask = ChunkBuffers::kAlignment - 1;
  return std::max<std::size_t>(ChunkBuffers::kAlignment, (bytes + kMask) & ~kMask);
}

}  // namespace

struct ChunkBuffers::Memory {
  Memory(std::size_t bytes, std::size_t chunk_bytes)
      : budget(std::max(bytes, round_up(chunk_bytes))), chunk(round_up(chunk_bytes)) {}
  ~Memory() {
    for (std::byte* memory : spare) std::free(memory);
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const std::size_t budget;
  const std::size_t chunk;
  std::mutex mutex;
  std::condition_variable freed;
  std::size_t used = 0;
  std::vector<std::byte*> spare;  // of chunk size: mapping memory again would cost as much as reading a chunk
};

ChunkBuffers::Buffer::Buffer(Buffer&& other) noexcept {
  *this = std::move(other);
}

ChunkBuffers::Buffer& ChunkBuffers::Buffer::operator=(Buffer&& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(memory_, other.memory_);
  std::swap(bytes_, other.bytes_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

ChunkBuffers::Buffer::~Buffer() {
  if (memory_ == nullptr) return;
  {
    const std::lock_guard lock(owner_->mutex);
    owner_->used -= capacity_;
    if (capacity_ == owner_->chunk) owner_->spare.push_back(std::exchange(memory_, nullptr));
  }
  owner_->freed.notify_all();
  std::free(memory_);
}

ChunkBuffers::ChunkBuffers(std::size_t budget, std::size_t chunk)
    : memory_(std::make_shared<Memory>(budget, chunk)) {
}

ChunkBuffers::Buffer ChunkBuffers::take(std::size_t bytes) {
  Buffer buffer;
  Memory& memory = *memory_;
  // Small chunks get a buffer of their own size. All others get buffers of one size, which can be reused.
  buffer.capacity_ =
      round_up(bytes) <= memory.chunk / 4 ? round_up(bytes) : std::max(memory.chunk, round_up(bytes));
  {
    std::unique_lock lock(memory.mutex);
    memory.freed.wait(lock,
                      [&] { return memory.used == 0 || memory.used + buffer.capacity_ <= memory.budget; });
    memory.used += buffer.capacity_;
    if (buffer.capacity_ == memory.chunk && !memory.spare.empty()) {
      buffer.memory_ = memory.spare.back();
      memory.spare.pop_back();
    }
  }
  if (buffer.memory_ == nullptr) {
    buffer.memory_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, buffer.capacity_));
    if (buffer.memory_ == nullptr) {
      const std::lock_guard lock(memory.mutex);
      memory.used -= buffer.capacity_;
      throw std::bad_alloc();
    }
  }
  buffer.owner_ = memory_;
  buffer.bytes_ = bytes;
  return buffer;
}

}  // namespace lockstep::transfer
