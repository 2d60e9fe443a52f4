// A batch in host memory, and the interface of the classes that build it on the workers.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/data/batch/batch_buffers.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_options.h"

namespace lockstep::data {

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
