// Memory of batches, used again and again: an allocation for each batch would be page faults, and
// page-locking one takes milliseconds. A batch's tensors lie in one buffer, so that one copy brings them to a
// device. The buffer comes back by itself when the last tensor on it is gone, and when nothing else (a copy
// that is under way) holds it.
//
// Threads: safe from any.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

namespace lockstep::data {

/// Host memory of one batch; holding it keeps it from being used again.
class BatchBuffer {
 public:
  explicit BatchBuffer(torch::Tensor bytes) : bytes_(std::move(bytes)) {}
  std::byte* data() const { return static_cast<std::byte*>(bytes_.data_ptr()); }
  /// uint8 [capacity].
  const torch::Tensor& bytes() const { return bytes_; }

 private:
  torch::Tensor bytes_;
};

class BatchBuffers : public std::enable_shared_from_this<BatchBuffers> {
 public:
  BatchBuffers(std::size_t capacity, bool page_locked) : capacity_(capacity), page_locked_(page_locked) {}

  /// One that nobody holds, or a new one. Throws Error where there is no memory for it.
  std::shared_ptr<BatchBuffer> take();

  std::size_t capacity() const { return capacity_; }
  bool page_locked() const { return page_locked_; }
  /// Made so far.
  std::size_t made() const;

 private:
  torch::Tensor allocate() const;

  std::size_t capacity_;  // bytes of each
  bool page_locked_;
  mutable std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::unique_ptr<BatchBuffer>> free_;
};

/// Where things lie in a buffer, each at a multiple of 64 bytes.
class BufferLayout {
 public:
  /// Room for this many bytes; returns the offset.
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

/// A tensor on a part of the buffer, which it holds.
torch::Tensor tensor_on(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset,
                        torch::IntArrayRef sizes, torch::ScalarType type);

}  // namespace lockstep::data
