// Reentrant activation checkpointing, for the tests of DistributedDataParallel.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>

namespace lockstep::testing {

using Segment = std::function<torch::Tensor(const torch::Tensor&)>;

/// Does not keep the intermediate results of the segment, but computes them again in backward, with an inner
/// backward.
class Checkpoint : public torch::autograd::Function<Checkpoint> {
 public:
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& input,
                               const Segment* segment) {
    context->save_for_backward({input});
    context->saved_data["segment"] = reinterpret_cast<std::int64_t>(segment);
    return (*segment)(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* segment = reinterpret_cast<const Segment*>(context->saved_data["segment"].toInt());
    const auto input = context->get_saved_variables()[0].detach().requires_grad_(true);
    torch::Tensor output;
    {
      const torch::AutoGradMode enable(true);
      output = (*segment)(input);
    }
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), torch::Tensor()};
  }
};

}  // namespace lockstep::testing
