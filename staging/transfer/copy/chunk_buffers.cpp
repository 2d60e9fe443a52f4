#include "staging/transfer/copy/chunk_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <new>
#include <utility>

namespace lockstep::transfer {
namespace {

std::size_t round_up(std::size_t bytes) {
  constexpr std::size_t kMask = ChunkBuffers::kAlignment - 1;
  return std::max<std::size_t>(ChunkBuffers::kAlignment, (bytes + kMask) & ~kMask);
}

}  // namespace

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
  if (memory_ != nullptr) owner_->give_back(*this);
}

std::span<std::byte> ChunkBuffers::Buffer::padded() const {
  return {memory_, std::min(capacity_, round_up(bytes_))};
}

ChunkBuffers::ChunkBuffers(std::size_t budget, std::size_t chunk)
    : budget_(std::max(budget, round_up(chunk))), chunk_(round_up(chunk)) {
}

ChunkBuffers::~ChunkBuffers() {
  for (std::byte* memory : spare_) std::free(memory);
}

ChunkBuffers::Buffer ChunkBuffers::take(std::size_t bytes) {
  Buffer buffer;
  // Small chunks get a buffer of their own size. All others get buffers of one size, which can be reused.
  buffer.capacity_ = round_up(bytes) <= chunk_ / 4 ? round_up(bytes) : std::max(chunk_, round_up(bytes));
  {
    std::unique_lock lock(mutex_);
    freed_.wait(lock, [&] { return used_ == 0 || used_ + buffer.capacity_ <= budget_; });
    used_ += buffer.capacity_;
    if (buffer.capacity_ == chunk_ && !spare_.empty()) {
      buffer.memory_ = spare_.back();
      spare_.pop_back();
    }
  }
  if (buffer.memory_ == nullptr) {
    buffer.memory_ = static_cast<std::byte*>(std::aligned_alloc(kAlignment, buffer.capacity_));
    if (buffer.memory_ == nullptr) {
      const std::lock_guard lock(mutex_);
      used_ -= buffer.capacity_;
      throw std::bad_alloc();
    }
  }
  buffer.owner_ = this;
  buffer.bytes_ = bytes;
  return buffer;
}

void ChunkBuffers::give_back(Buffer& buffer) {
  std::byte* memory = std::exchange(buffer.memory_, nullptr);
  {
    const std::lock_guard lock(mutex_);
    used_ -= buffer.capacity_;
    if (buffer.capacity_ == chunk_) spare_.push_back(std::exchange(memory, nullptr));
  }
  freed_.notify_all();
  std::free(memory);
}

}  // namespace lockstep::transfer
