#include "runtime/ddp/operation_observer.h"

#include <atomic>
#include <memory>
#include <string_view>
#include <utility>

#include "common/error.h"

namespace lockstep::ddp {
namespace {

// LibTorch calls plain functions, so they find the observer here.
std::atomic<OperationObserver*> active{nullptr};

// The operations that this thread is in.
thread_local int depth = 0;

// LibTorch shows backward and each of its nodes as operations too. Operations inside them count as called by the program.
bool is_backward(std::string_view name) {
  return name == "aten::_backward" || name.starts_with("autograd::engine::");
}

struct Context : at::ObserverContext {
  std::vector<c10::IValue> inputs;  // LibTorch has them at the start only
};

}  // namespace

struct OperationObserver::Callbacks {
  static std::unique_ptr<at::ObserverContext> start(const at::RecordFunction& function) {
    if (is_backward(function.name())) return nullptr;
    ++depth;
    auto context = std::make_unique<Context>();
    context->inputs.assign(function.inputs().begin(), function.inputs().end());
    return context;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context == nullptr) return;
    --depth;
    OperationObserver* observer = active;
    if (observer == nullptr) return;
    const at::DisableRecordFunctionGuard not_shown;
    const std::scoped_lock lock(observer->mutex_);
    observer->ended_({.name = function.name(),
                      .called_by_program = depth == 0,
                      .inputs = static_cast<Context*>(context)->inputs,
                      .results = function.outputs()});
  }
};

OperationObserver::OperationObserver(std::function<void(const Operation&)> ended) : ended_(std::move(ended)) {
  OperationObserver* none = nullptr;
  if (!active.compare_exchange_strong(none, this)) {
    fail_usage(
        "another debug tool that looks at operations (SyncDetector, check_model) is in use; end it first");
  }
  depth = 0;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Callbacks::start, &Callbacks::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OperationObserver::~OperationObserver() {
  at::removeCallback(handle_);
  active = nullptr;
}

}  // namespace lockstep::ddp
