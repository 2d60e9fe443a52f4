#include "runtime/ddp/autograd_hooks.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace lockstep::ddp {

using torch::autograd::Node;
using torch::autograd::variable_list;

std::vector<torch_compat::NodeHandle> accumulators_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch_compat::NodeHandle> accumulators;
  for (const auto& parameter : parameters) {
    auto accumulator = torch::autograd::impl::grad_accumulator(parameter);
    // If set_data() changed the parameter's shape, an older accumulator would still sum gradients to the old
    // shape.
    if (!accumulator->input_metadata(0).is_same_shape(parameter)) {
      torch::autograd::impl::get_autograd_meta(parameter)->grad_accumulator_.reset();
      accumulator = torch::autograd::impl::grad_accumulator(parameter);
    }
    accumulators.push_back(std::move(accumulator));
  }
  return accumulators;
}

GradientHooks::GradientHooks(std::vector<torch_compat::NodeHandle> accumulators,
                             std::function<void(std::size_t)> on_gradient)
    : accumulators_(std::move(accumulators)) {
  const auto call = std::make_shared<const std::function<void(std::size_t)>>(std::move(on_gradient));
  for (std::size_t i = 0; i < accumulators_.size(); ++i) {
    hooks_.push_back(accumulators_[i]->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [call, i](const variable_list& outputs, const variable_list& /*inputs*/) {
          (*call)(i);
          return outputs;
        })));
  }
}

GradientHooks::~GradientHooks() {
  for (std::size_t i = 0; i < hooks_.size(); ++i) accumulators_[i]->del_post_hook(hooks_[i]);
}

std::vector<bool> GradientHooks::reached_from(const std::vector<torch::Tensor>& outputs) const {
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const auto& output : outputs) {
    if (output.requires_grad()) visit(torch::autograd::impl::gradient_edge(output).function.get());
  }
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    for (const auto& edge : node->next_edges()) visit(edge.function.get());
  }
  std::vector<bool> reached;
  for (const auto& accumulator : accumulators_) reached.push_back(seen.contains(accumulator.get()));
  return reached;
}

void call_when_reached(const std::vector<torch::Tensor>& outputs, const std::function<void()>& reached) {
  for (const auto& output : outputs) {
    // A leaf, such as a parameter that forward returns unchanged, would collect the hooks of all forwards.
    if (!output.requires_grad() || output.is_leaf()) continue;
    output.register_hook([reached](const torch::Tensor& /*gradient*/) { reached(); });
  }
}

void call_at_end_of_backward(std::function<void()> ended) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(ended));
}

}  // namespace lockstep::ddp
