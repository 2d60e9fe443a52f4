// Copies batches to the device while the device computes: from page-locked memory, on a separate stream,
// one copy per batch. The computing stream waits for the copy, but the thread does not. The host buffer is
// held until the copy ends. For the CPU this does nothing. It compiles without CUDA, since it uses
// LibTorch's device-independent streams and events.
//
// Threads: the training thread.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <deque>
#include <memory>
#include <optional>

#include "runtime/data/batch/host_batch.h"

namespace lockstep::data {

class DeviceCopy {
 public:
  explicit DeviceCopy(torch::Device device);
  /// Waits for copies in progress, unless the device has failed.
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// Whether batches must be copied: the device is not the CPU.
  bool needed() const { return !device_.is_cpu(); }

  /// Begins to copy a batch. Returns the batch on the device, for finish(). If it throws, it can be called again with the
  /// same batch.
  HostBatch begin(HostBatch host);

  /// Makes the calling thread's stream wait for the copy, and returns the batch.
  Batch finish(HostBatch copied);

 private:
  struct CopyInProgress {
    c10::Event done;
    std::shared_ptr<BatchBuffer> buffer;
  };
  void release_finished();

  torch::Device device_;
  std::optional<c10::Stream> stream_;
  std::deque<CopyInProgress> in_progress_;
};

}  // namespace lockstep::data
