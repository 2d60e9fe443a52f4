// Shows each operation of LibTorch that a thread runs, with its inputs and results. The check of a model and the debug
// tools of runtime/train use it, since C++ modules do not have forward hooks.
//
// Threads: one observer exists at a time. It sees the operations of the thread that made it and of the backward passes
// that this thread starts, even if they run on autograd's thread of a device.
#pragma once

#include <ATen/record_function.h>

#include <functional>
#include <mutex>
#include <vector>

namespace lockstep::ddp {

struct Operation {
  const char* name = nullptr;      ///< "aten::linear"
  bool called_by_program = false;  ///< not by another operation
  const std::vector<c10::IValue>& inputs;
  const std::vector<c10::IValue>& results;  ///< empty if the operation threw
};

class OperationObserver {
 public:
  /// `ended` is called after each operation, inner ones first; what it computes itself is not shown. It must not
  /// throw. Throws UsageError if there is an observer already.
  explicit OperationObserver(std::function<void(const Operation&)> ended);
  ~OperationObserver();
  OperationObserver(const OperationObserver&) = delete;
  OperationObserver& operator=(const OperationObserver&) = delete;

 private:
  struct Callbacks;

  std::function<void(const Operation&)> ended_;
  std::mutex mutex_;  // held while ended_ runs
  at::CallbackHandle handle_;
};

}  // namespace lockstep::ddp
