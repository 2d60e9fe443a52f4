// A batch in host memory as workers build it, and who builds it.
//
// Threads: build() is safe from several threads, each with its own worker number.
#pragma once

#include <cstddef>
#include <memory>

#include "runtime/data/batch/batch_buffers.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_batch.h"

namespace lockstep::data {

/// A batch, and the buffer in which its tensors lie.
struct HostBatch {
  Batch batch;
  MicroBatch micro_batch;  ///< which one it is; the end of an epoch has no batch
  std::shared_ptr<BatchBuffer> buffer;
  std::size_t used = 0;        ///< bytes of the buffer
  std::size_t bytes_read = 0;  ///< of packed samples
  // What computing it takes, padding included: sums over the samples.
  double work_tokens = 0;
  double work_squares = 0;
};

class HostBatchBuilder {
 public:
  virtual ~HostBatchBuilder() = default;
  HostBatchBuilder() = default;
  HostBatchBuilder(const HostBatchBuilder&) = delete;
  HostBatchBuilder& operator=(const HostBatchBuilder&) = delete;

  /// This rank's part of the micro-batch. Throws Error naming the sample.
  virtual HostBatch build(const MicroBatch& micro_batch, int worker) = 0;

  virtual const BatchBuffers& buffers() const = 0;
};

}  // namespace lockstep::data
