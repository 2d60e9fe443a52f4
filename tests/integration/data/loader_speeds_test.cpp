// Ranks of unequal speeds get unequal shares of a step; the gradient stays that of the whole step.
#include <gtest/gtest.h>

#include "runtime/data/loader.h"
#include "runtime/data/plan/planner.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

struct LineImpl : torch::nn::Module {
  LineImpl() { weights = register_parameter("weights", torch::tensor({0.3, -0.2}, torch::kFloat64)); }
  torch::Tensor forward(const torch::Tensor& tokens) {
    const auto x = tokens.to(torch::kFloat64) / 1e4;
    return weights[0] * x + weights[1];
  }
  torch::Tensor weights;
};
TORCH_MODULE(Line);

// A sum over tokens that depends on each of them.
torch::Tensor loss_of(const torch::Tensor& out, const torch::Tensor& tokens) {
  return (out - torch::cos(tokens.to(torch::kFloat64))).pow(2).sum();
}

TEST_F(LoaderTest, WithUnequalSharesTheGradientIsThatOfTheWholeStep) {
  PlanOptions plan = options(128, 2);
  plan.ranks = world().size();
  for (int rank = 0; rank < world().size(); ++rank) plan.speeds.push_back(1 + 2 * rank);
  Loader loader(*reader_, plan, world());
  const Plan planned = make_plan(lengths_from_pack(*reader_, "test").tokens, plan);
  Line model;
  DistributedDataParallel<LineImpl> ddp(model, world());
  double mine = 0;
  double all = 0;
  for (const Batch& batch : loader) {
    {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);
      if (batch.empty) {
        ddp.skip();
      } else {
        ddp.backward(loss_of(ddp(batch.tokens), batch.tokens), batch.token_count);
      }
    }
    mine += static_cast<double>(batch.token_count);
    if (!batch.last_of_step) continue;
    // The gradient of one process.
    Line whole;
    std::vector<std::int64_t> tokens;
    for (const SampleId id : planned.step_samples(static_cast<std::size_t>(batch.step))) {
      for (std::int64_t t = 0; t < length_of(id); ++t) tokens.push_back(token_of(id, t) % 65536);
    }
    all += static_cast<double>(tokens.size());
    const auto as_tensor = torch::tensor(tokens);
    (loss_of(whole->forward(as_tensor), as_tensor) / static_cast<double>(tokens.size())).backward();
    const auto off = (model->weights.grad() - whole->weights.grad()).abs().max().item<double>();
    EXPECT_LT(off, 1e-9) << "step " << batch.step;
    model->weights.mutable_grad().zero_();
  }
  if (world().size() > 1 && world().rank() == 0) {
    EXPECT_LT(mine / all, 0.8 / world().size()) << "the shares were not unequal";
  }
}

}  // namespace
}  // namespace lockstep::data
