// Brings batches to the device beside its work: page-locked memory, a stream of its own, one copy per batch.
// The stream that computes waits for the copy, not the thread; the host's buffer is held until the copy is
// over. For the CPU it does nothing. It needs no CUDA to compile: LibTorch's device-independent streams and
// events do it.
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
  /// Waits for copies that are under way.
  ~DeviceCopy();
  DeviceCopy(const DeviceCopy&) = delete;
  DeviceCopy& operator=(const DeviceCopy&) = delete;

  /// Whether there is anything to copy to.
  bool needed() const { return !device_.is_cpu(); }

  /// Begins the copy of a batch and returns the batch on the device, for finish().
  HostBatch begin(HostBatch host);

  /// What the calling thread's stream does from here on finds the batch on the device.
  Batch finish(HostBatch copied);

 private:
  struct UnderWay {
    c10::Event done;
    std::shared_ptr<BatchBuffer> buffer;
  };
  void forget_what_is_done();

  torch::Device device_;
  std::optional<c10::Stream> stream_;
  std::deque<UnderWay> under_way_;
};

}  // namespace lockstep::data
