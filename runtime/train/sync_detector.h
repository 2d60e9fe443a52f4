// Names the calls of a training step that make the program wait for the GPU: reading a number (item()), finding
// non-zero elements, copying to the host. Each of them leaves the GPU without work for a while.
//
//   {
//     const lockstep::SyncDetector detector(torch::kCUDA);
//     … one step …
//     fmt::print("{}\n", detector.text());   // "aten::item (2 times), aten::masked_select (once)"
//   }
//
// It is a tool for debugging: it makes each operation some microseconds slower. With torch::kCPU it names the calls
// on tensors in host memory that would wait if the tensors were on a GPU, except copies.
//
// Not found: waiting in code that is not LibTorch's, such as cudaStreamSynchronize() or NCCL.
//
// Threads: applies to the thread that made it and to the backward passes that this thread starts.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>

#include "runtime/train/operation_observer.h"

namespace lockstep {

namespace train {
/// Whether this operation waits for the device of its tensors, if they are on a device of this type.
bool waits_for_device(const std::string& operation, c10::ArrayRef<c10::IValue> inputs,
                      torch::DeviceType type);
}  // namespace train

class SyncDetector {
 public:
  /// Throws UsageError if another debug tool that looks at operations is in use.
  explicit SyncDetector(torch::DeviceType device = torch::kCUDA);

  /// The operations that the program called and that waited, and how often. Call it when the step has ended.
  const std::map<std::string, int>& calls() const { return calls_; }
  /// The same as a line; "no synchronising call" without any.
  std::string text() const;

 private:
  void see(const train::Operation& operation);

  torch::DeviceType device_;
  std::map<std::string, int> calls_;
  train::OperationObserver observer_;
};

}  // namespace lockstep
