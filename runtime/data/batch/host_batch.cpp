#include "runtime/data/batch/host_batch.h"

#include <torch/torch.h>

#include <utility>

#include "common/error.h"
#include "common/units.h"

namespace lockstep::data {

std::shared_ptr<BatchBuffer> BatchBuffers::take() {
  std::unique_ptr<BatchBuffer> buffer;
  {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) {
      ++made_;
    } else {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
  }
  if (!buffer) {
    buffer = std::make_unique<BatchBuffer>(allocate());
  }
  return {buffer.release(), [pool = weak_from_this()](BatchBuffer* used) {
            std::unique_ptr<BatchBuffer> owned(used);
            if (const auto alive = pool.lock()) {
              const std::lock_guard lock(alive->mutex_);
              alive->free_.push_back(std::move(owned));
            }
          }};
}

torch::Tensor BatchBuffers::allocate() const {
  const auto options = torch::TensorOptions().dtype(torch::kUInt8).pinned_memory(page_locked_);
  try {
    return torch::empty({static_cast<std::int64_t>(capacity_)}, options);
  } catch (const c10::Error& error) {
    fail("cannot allocate {} of {}memory for a batch: {}; lower the cap", format_bytes(capacity_),
         page_locked_ ? "page-locked " : "", error.what_without_backtrace());
  }
}

std::size_t BatchBuffers::made() const {
  const std::lock_guard lock(mutex_);
  return made_;
}

torch::Tensor tensor_on(const std::shared_ptr<BatchBuffer>& buffer, std::size_t offset,
                        torch::IntArrayRef sizes, torch::ScalarType type) {
  return torch::from_blob(
      buffer->data() + offset, sizes, [buffer](void*) {}, torch::TensorOptions().dtype(type));
}

}  // namespace lockstep::data
