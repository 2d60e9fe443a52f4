// A batch in host memory: the pool of buffers for its tensors, and the interface of the classes that build it on the workers.
//
// Reusing buffers avoids page faults, and page-locking a new one takes milliseconds. All tensors of a batch are in one buffer,
// so one copy brings them to a device. A buffer returns to the pool when its last tensor is destroyed and no copy in progress
// uses it.
//
// Threads: safe from any; build() with a worker number for each.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_options.h"

namespace lockstep::data {

/// The host memory of one batch. It is not reused while it is referenced.
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

  /// Returns a free buffer, or a new one. Throws Error if there is no memory for it.
  std::shared_ptr<BatchBuffer> take();

  std::size_t capacity() const { return capacity_; }
  bool page_locked() const { return page_locked_; }
  /// The number of buffers allocated so far.
  std::size_t made() const;

 private:
  torch::Tensor allocate() const;

  std::size_t capacity_;  // bytes of each
  bool page_locked_;
  mutable std::mutex mutex_;
  std::size_t made_ = 0;
  std::vector<std::unique_ptr<BatchBuffer>> free_;
};

/// Assigns places in a buffer, each at a multiple of 64 bytes.
class BufferLayout {
 public:
  /// Reserves this many bytes and returns their offset.
  std::size_t add(std::size_t bytes) {
    const std::size_t offset = used_;
    used_ += (bytes + 63) / 64 * 64;
    return offset;
  }
  std::size_t used() const { return used_; }

 private:
  std::size_t used_ = 0;
};

/// A tensor on a part of the buffer. It keeps the buffer from being reused.
torch::Tensor tensor_on(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset,
                        torch::IntArrayRef sizes, torch::ScalarType type);

/// A batch and the buffer that holds its tensors.
struct HostBatch {
  Batch batch;
  MicroBatch micro_batch;  ///< its place in the plan; the end of an epoch has no batch
  std::shared_ptr<BatchBuffer> buffer;
  std::size_t used = 0;        ///< bytes used of the buffer
  std::size_t bytes_read = 0;  ///< bytes of packed samples
};

class HostBatchBuilder {
 public:
  virtual ~HostBatchBuilder() = default;
  HostBatchBuilder() = default;
  HostBatchBuilder(const HostBatchBuilder&) = delete;
  HostBatchBuilder& operator=(const HostBatchBuilder&) = delete;

  /// Builds the micro-batch of this rank. Throws Error naming the sample that cannot be used.
  virtual HostBatch build(const MicroBatch& micro_batch, int worker) = 0;

  virtual const BatchBuffers& buffers() const = 0;
};

}  // namespace lockstep::data
