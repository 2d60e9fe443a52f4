#include <c10/util/Exception.h>

#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "runtime/train/debug.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {
namespace {

// The CPU's allocator throws a plain c10::Error, which only its message identifies.
bool is_out_of_memory(const c10::Error& error) {
  return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
         std::string_view(error.what_without_backtrace()).find("DefaultCPUAllocator") !=
             std::string_view::npos;
}

[[noreturn]] void fail_for_memory(const std::string& why) {
  fail(
      "memory warm-up: the largest micro-batch does not fit into memory: lower the plan's cap, or use activation checkpointing ({})",
      why.substr(0, why.find('\n')));
}

}  // namespace

void memory_warm_up(const torch::nn::Module& module, const std::function<torch::Tensor()>& loss) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : module.parameters()) {
    if (parameter.requires_grad()) parameters.push_back(parameter);
  }
  try {
    const torch::Tensor value = loss();
    if (!value.defined() || !value.requires_grad())
      fail_usage(
          "memory warm-up: the loss does not depend on any trained parameter; return the loss of a batch");
    // Not backward(): it would add to .grad, and the hooks of DistributedDataParallel would run.
    torch::autograd::grad({value}, parameters, /*grad_outputs=*/{}, /*retain_graph=*/false,
                          /*create_graph=*/false,
                          /*allow_unused=*/true);
  } catch (const c10::Error& error) {
    if (!is_out_of_memory(error)) throw;
    fail_for_memory(error.what_without_backtrace());
  } catch (const std::bad_alloc& error) {
    fail_for_memory(error.what());
  }
}

}  // namespace lockstep
