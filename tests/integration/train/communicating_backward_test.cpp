// Models whose backward adds up gradients of all ranks, averaged by count: from the first step on, the gradients are those of
// one process, although the ranks' counts differ.
#include <gtest/gtest.h>

#include "runtime/ddp/collectives.h"
#include "runtime/train/activation_checkpoint.h"
#include "tests/integration/train/checkpoint_world.h"

namespace lockstep::testing {
namespace {

// An operation of the program's own.
struct SumOfAllRanks : torch::autograd::Function<SumOfAllRanks> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& mine) {
    torch::Tensor sum = mine.detach().clone();
    all_reduce(world(), sum);
    return sum;
  }
  static std::vector<torch::Tensor> backward(torch::autograd::AutogradContext* /*context*/,
                                             std::vector<torch::Tensor> gradients) {
    return {forward(nullptr, gradients[0])};
  }
};

enum class Mixes : std::uint8_t {
  batch_norm,
  batch_norm_computed_again,
  batch_norm_with_penalty,
  own_operation
};

/// A model that sees the whole batch: alone, or by exchanging sums with the other ranks.
struct MixingNetImpl : torch::nn::Module {
  MixingNetImpl(Mixes mixes, bool alone) : mixes_(mixes), alone_(alone) {
    layers = register_module("layers", torch::nn::Sequential(torch::nn::Linear(6, 5)));
    if (mixes != Mixes::own_operation) layers->push_back(torch::nn::BatchNorm1d(5));
    layers->push_back(torch::nn::Tanh());
    last = register_module("last", torch::nn::Linear(5, 3));
    to(torch::kDouble);
    if (!alone) convert_sync_batch_norm(world(), *this);
  }

  torch::Tensor forward(const torch::Tensor& input) {
    torch::Tensor hidden = mixes_ == Mixes::batch_norm_computed_again ? activation_checkpoint(layers, input)
                                                                      : layers->forward(input);
    if (mixes_ == Mixes::own_operation) {
      const torch::Tensor sum = hidden.sum(0);
      hidden = hidden - 0.1 * (alone_ ? sum : SumOfAllRanks::apply(sum));
    }
    return last(hidden);
  }

  torch::nn::Sequential layers = nullptr;
  torch::nn::Linear last = nullptr;

 private:
  Mixes mixes_;
  bool alone_;
};
TORCH_MODULE(MixingNet);

template <typename Model>
torch::Tensor loss_of(Model& model, Mixes mixes, const torch::Tensor& rows) {
  const torch::Tensor input = rows.clone().requires_grad_(mixes == Mixes::batch_norm_with_penalty);
  const torch::Tensor output = model(input);
  const torch::Tensor loss = output.square().sum();
  if (mixes != Mixes::batch_norm_with_penalty) return loss;
  return loss + torch::autograd::grad({output.sum()}, {input}, {}, true, true)[0].square().sum();
}

class CommunicatingBackward : public ::testing::TestWithParam<Mixes> {
 protected:
  void expect_gradient_of_one_process(DistributedDataParallel<MixingNetImpl>& ddp, const char* when) {
    std::int64_t before = 0;
    std::int64_t total = 0;
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(world().size()); ++rank) {
      if (static_cast<int>(rank) < world().rank()) before += counts.at(rank);
      total += counts.at(rank);
    }
    const std::int64_t mine = counts.at(static_cast<std::size_t>(world().rank()));
    const torch::Tensor all = rows(total, ++seed_);
    MixingNet alone(GetParam(), true);
    copy_parameters(ddp.module(), *alone);
    ddp.backward(loss_of(ddp, GetParam(), all.slice(0, before, before + mine)), mine);
    (loss_of(alone, GetParam(), all) / static_cast<double>(total)).backward();
    EXPECT_LT(gradient_difference(ddp.module(), *alone), 1e-10) << when << ", " << counts[0] << " samples";
    ddp.module().zero_grad();
  }

  std::vector<std::int64_t> counts;  // of the ranks

 private:
  std::uint64_t seed_ = 0;
};

TEST_P(CommunicatingBackward, GivesTheGradientOfOneProcessInEveryStep) {
  const std::vector<std::int64_t> of_ranks[] = {{4, 32, 5, 7}, {5, 7, 40, 3}};
  for (const auto& of_rank : of_ranks) {
    counts = of_rank;
    torch::manual_seed(4);
    const SharedFolder folder;
    MixingNet net(GetParam(), false);
    {
      DistributedDataParallel ddp(net, world(), small_buckets());
      for (const char* when : {"first step", "second step", "third step"})
        expect_gradient_of_one_process(ddp, when);
    }
    {
      DistributedDataParallel ddp(net, world(), small_buckets());
      expect_gradient_of_one_process(ddp, "first step of a new object");
    }
    Checkpointer writer(world(), folder / "run");
    writer.add("model", *net);
    writer.save(1);
    writer.wait();
    MixingNet resumed(GetParam(), false);
    Checkpointer reader(world(), folder / "run", {.read_only = true});
    reader.add("model", *resumed);
    ASSERT_EQ(reader.load_latest(), 1);
    EXPECT_TRUE(same_bits(*net, *resumed));
    DistributedDataParallel ddp(resumed, world(), small_buckets());
    expect_gradient_of_one_process(ddp, "first step after a resume");
  }
}

INSTANTIATE_TEST_SUITE_P(Of, CommunicatingBackward,
                         ::testing::Values(Mixes::batch_norm, Mixes::batch_norm_computed_again,
                                           Mixes::batch_norm_with_penalty, Mixes::own_operation));

}  // namespace
}  // namespace lockstep::testing
