// Activation checkpointing under DistributedDataParallel, in every mode.
#include <gtest/gtest.h>

#include "runtime/train/activation_checkpoint.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() {
    inner = register_module("inner", Net());
    unused = register_module("unused", torch::nn::Linear(6, 6));
    unused->to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    const torch::Tensor hidden = checkpointed ? activation_checkpoint(inner, input) : inner(input);
    return with_unused ? unused(hidden) : hidden;
  }
  Net inner{nullptr};
  torch::nn::Linear unused{nullptr};
  bool checkpointed = true;
  bool with_unused = false;
};
TORCH_MODULE(Checkpointed);

void expect_same_gradients(const DistributedDataParallelOptions& options, bool with_unused) {
  torch::manual_seed(11);
  Checkpointed with;
  torch::manual_seed(11);
  Checkpointed without;
  with->with_unused = without->with_unused = with_unused;
  without->checkpointed = false;
  DistributedDataParallel ddp_with(with, world(), options);
  DistributedDataParallel ddp_without(without, world(), options);
  for (std::uint64_t step = 0; step < 4; ++step) {
    const torch::Tensor input = rows(3, 10 * step + static_cast<std::uint64_t>(world().rank()));
    for (auto* ddp : {&ddp_with, &ddp_without}) {
      {
        const auto hold = ddp->no_sync();
        ddp->backward((*ddp)(input * 0.5).square().sum(), 3);
      }
      ddp->backward((*ddp)(input).square().sum(), 3);
    }
    EXPECT_LT(gradient_difference(*with->inner, *without->inner), 1e-12);
    for (auto& parameter : with->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
    for (auto& parameter : without->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad().zero_();
    }
  }
}

TEST(ActivationCheckpointUnderDdp, ByTokens) {
  expect_same_gradients(small_buckets(), true);
}

TEST(ActivationCheckpointUnderDdp, WithUnusedParameters) {
  auto options = small_buckets();
  options.find_unused_parameters = true;
  expect_same_gradients(options, false);
}

TEST(ActivationCheckpointUnderDdp, WithAStaticGraph) {
  auto options = small_buckets();
  options.static_graph = true;
  expect_same_gradients(options, true);
}

}  // namespace
}  // namespace lockstep::testing
