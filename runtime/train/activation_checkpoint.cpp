#include "runtime/train/activation_checkpoint.h"

#include <algorithm>
#include <array>
#include <optional>

#include "common/error.h"
#include "runtime/ddp/seen_tensors.h"
#include "runtime/torch_version.h"
#include "runtime/train/random_state.h"

namespace lockstep {
namespace {

using Tensors = std::vector<torch::Tensor>;

// The settings of the calling thread that forward depends on.
class ForwardState {
 public:
  explicit ForwardState(std::optional<torch::Device> device)
      : device_(device), random_(train::default_generators(device)) {
    for (std::size_t i = 0; i < torch_compat::kAutocastDevices.size(); ++i) {
      enabled_[i] = torch_compat::autocast_enabled(torch_compat::kAutocastDevices[i]);
      type_[i] = torch_compat::autocast_type(torch_compat::kAutocastDevices[i]);
    }
  }

  void restore() const {
    random_.restore();
    for (std::size_t i = 0; i < torch_compat::kAutocastDevices.size(); ++i)
      torch_compat::set_autocast(torch_compat::kAutocastDevices[i], enabled_[i], type_[i]);
  }

  std::optional<torch::Device> device() const { return device_; }

 private:
  std::optional<torch::Device> device_;
  train::RandomState random_;
  std::array<bool, torch_compat::kAutocastDevices.size()> enabled_{};
  std::array<torch::ScalarType, torch_compat::kAutocastDevices.size()> type_{};
};

// LibTorch caches cast copies of parameters until the outermost Autocast ends. Copies cached in a forward
// without gradients would get no gradient. Recomputing has no Autocast whose end empties the cache, so its
// copies would outlive the optimizer's step.
class WithoutCastCache {
 public:
  WithoutCastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~WithoutCastCache() { at::autocast::set_autocast_cache_enabled(before_); }
  WithoutCastCache(const WithoutCastCache&) = delete;
  WithoutCastCache& operator=(const WithoutCastCache&) = delete;

 private:
  bool before_;
};

struct Segment : torch::CustomClassHolder {
  Segment(train::TensorFunction called, std::size_t input_count, ForwardState before)
      : function(std::move(called)), inputs(input_count), state(std::move(before)) {}
  train::TensorFunction function;
  std::size_t inputs;  // the other saved tensors are parameters
  ForwardState state;
};

Tensors recompute(const Segment& segment, const Tensors& inputs) {
  const ForwardState before(segment.state.device());
  segment.state.restore();
  const WithoutCastCache without_cast_cache;
  const torch::AutoGradMode with_grad(true);
  try {
    Tensors results = segment.function(inputs);
    before.restore();
    return results;
  } catch (...) {
    before.restore();
    throw;
  }
}

// Autograd sees tensors that are given one by one or as a TensorList, not those in a std::vector.
struct Recompute : torch::autograd::Function<Recompute> {
  static Tensors forward(torch::autograd::AutogradContext* context,
                         const c10::intrusive_ptr<Segment>& segment, const torch::TensorList& tensors) {
    context->saved_data["segment"] = c10::IValue::make_capsule(segment);
    context->save_for_backward(tensors.vec());
    const WithoutCastCache without_cast_cache;
    Tensors results =
        segment->function({tensors.begin(), tensors.begin() + static_cast<std::ptrdiff_t>(segment->inputs)});
    // Autograd does not accept a result that is itself an input, so return a view of it.
    for (auto& result : results) {
      for (const auto& tensor : tensors) {
        if (result.is_same(tensor)) result = result.view_as(result);
      }
    }
    return results;
  }

  static Tensors backward(torch::autograd::AutogradContext* context, const Tensors& gradients) {
    if (torch::GradMode::is_enabled())
      fail_usage(
          "activation_checkpoint does not support backward with create_graph; do not checkpoint this part");
    const auto capsule = context->saved_data["segment"].toCapsule();
    const auto& segment = static_cast<const Segment&>(*capsule);
    const Tensors saved = context->get_saved_variables();
    Tensors inputs;
    Tensors wanted;
    std::vector<std::size_t> places;  // of the wanted gradients among the saved tensors
    for (std::size_t i = 0; i < saved.size(); ++i) {
      torch::Tensor tensor = saved[i];
      if (i < segment.inputs) {
        tensor = tensor.detach().requires_grad_(tensor.requires_grad());
        inputs.push_back(tensor);
      }
      if (!tensor.requires_grad()) continue;
      wanted.push_back(tensor);
      places.push_back(i);
    }
    const Tensors results = recompute(segment, inputs);
    if (results.size() != gradients.size()) {
      fail_usage("activation_checkpoint: the function returned {} tensors, and {} when it was called again",
                 gradients.size(), results.size());
    }
    Tensors roots;
    Tensors root_gradients;
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!gradients[i].defined() || !results[i].requires_grad()) continue;
      if (results[i].sizes() != gradients[i].sizes())
        fail_usage(
            "activation_checkpoint: result {} has another shape when the function is called again; its results must depend on its inputs, its parameters and random numbers only",
            i);
      roots.push_back(results[i]);
      root_gradients.push_back(gradients[i]);
    }
    Tensors found(saved.size() + 1);  // the first is for the segment itself
    if (!roots.empty()) {
      const Tensors computed = torch::autograd::grad(roots, wanted, root_gradients, /*retain_graph=*/{},
                                                     /*create_graph=*/false, /*allow_unused=*/true);
      for (std::size_t i = 0; i < computed.size(); ++i) found[places[i] + 1] = computed[i];
    }
    return found;
  }
};

}  // namespace

std::vector<torch::Tensor> activation_checkpoint(const train::TensorFunction& function,
                                                 const std::vector<torch::Tensor>& inputs,
                                                 const std::vector<torch::Tensor>& parameters) {
  Tensors tensors = inputs;
  SeenTensors seen;  // a parameter that is listed twice would get its gradient twice
  for (const auto& parameter : parameters) {
    if (seen.add(parameter)) tensors.push_back(parameter);
  }
  const bool needed = std::any_of(tensors.begin(), tensors.end(),
                                  [](const torch::Tensor& tensor) { return tensor.requires_grad(); });
  if (!needed || !torch::GradMode::is_enabled()) return function(inputs);
  return Recompute::apply(
      c10::make_intrusive<Segment>(function, inputs.size(), ForwardState(train::device_of(tensors))),
      torch::TensorList(tensors));
}

}  // namespace lockstep
