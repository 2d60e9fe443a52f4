// DistributedDataParallel gives the gradients of one process on the whole batch.
#include <gtest/gtest.h>

#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

constexpr double kTolerance = 1e-12;

// The number of rows (tokens) of a rank in a micro-batch.
using Split = std::int64_t (*)(int rank, int micro_batch);

std::int64_t equal(int /*rank*/, int /*micro_batch*/) {
  return 4;
}
std::int64_t unequal(int rank, int micro_batch) {
  return 1 + (rank * 5 + micro_batch * 3) % 7;
}
std::int64_t some_empty(int rank, int micro_batch) {
  return (rank + micro_batch) % 2 == 0 ? 3 + rank : 0;
}
std::int64_t rank_0_empty(int rank, int micro_batch) {
  return rank == 0 && world().size() > 1 ? 0 : 2 + micro_batch;
}

struct Case {
  const char* name;
  int micro_batches;
  Split split;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

// One whole batch, cut into the rows of every rank and micro-batch.
class Batch {
 public:
  Batch(const Case& c, int step) {
    std::int64_t total = 0;
    for (int m = 0; m < c.micro_batches; ++m) {
      for (int r = 0; r < world().size(); ++r) {
        if (r == world().rank()) mine_.push_back({total, total + c.split(r, m)});
        total += c.split(r, m);
      }
    }
    inputs = rows(total, 100 + static_cast<std::uint64_t>(step));
    targets = rows(total, 200 + static_cast<std::uint64_t>(step));
  }
  std::int64_t tokens() const { return inputs.size(0); }
  std::int64_t my_tokens(int m) const {
    return mine_[static_cast<std::size_t>(m)].end - mine_[static_cast<std::size_t>(m)].begin;
  }
  torch::Tensor mine(const torch::Tensor& all, int m) const {
    return all.slice(0, mine_[static_cast<std::size_t>(m)].begin, mine_[static_cast<std::size_t>(m)].end);
  }

  torch::Tensor inputs;
  torch::Tensor targets;

 private:
  struct Range {
    std::int64_t begin;
    std::int64_t end;
  };
  std::vector<Range> mine_;
};

template <typename Ddp>
void run_step(Ddp& ddp, const Case& c, const Batch& batch) {
  for (int m = 0; m < c.micro_batches; ++m) {
    const auto hold = ddp.no_sync_unless(m == c.micro_batches - 1);
    if (batch.my_tokens(m) == 0) {
      ddp.skip();
    } else {
      ddp.backward(sum_of_squares(ddp(batch.mine(batch.inputs, m)), batch.mine(batch.targets, m)),
                   batch.my_tokens(m));
    }
  }
}

class AveragedByCount : public ::testing::TestWithParam<Case> {};

TEST_P(AveragedByCount, GradientsEqualThoseOfOneProcess) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  Net alone = copy_of(net);
  torch::optim::SGD optimizer(net->parameters(), 0.05);
  torch::optim::SGD alone_optimizer(alone->parameters(), 0.05);
  for (int step = 0; step < 4; ++step) {
    const Batch batch(GetParam(), step);
    run_step(ddp, GetParam(), batch);
    (sum_of_squares(alone(batch.inputs), batch.targets) / static_cast<double>(batch.tokens())).backward();

    EXPECT_LE(gradient_difference(*net, *alone), kTolerance) << "step " << step;
    EXPECT_EQ(ddp.tokens_of_last_step(), batch.tokens());
    optimizer.step();
    alone_optimizer.step();
    if (step == 1) {  // as recent LibTorch does
      set_gradients_to_none(*net);
    } else {
      optimizer.zero_grad();
    }
    alone_optimizer.zero_grad();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Splits, AveragedByCount,
    ::testing::Values(Case{"Equal", 1, equal}, Case{"EqualAccumulated", 3, equal},
                      Case{"Unequal", 1, unequal}, Case{"UnequalAccumulated", 3, unequal},
                      Case{"SomeEmpty", 1, some_empty}, Case{"SomeEmptyAccumulated", 4, some_empty},
                      Case{"Rank0Empty", 1, rank_0_empty}, Case{"Rank0EmptyAccumulated", 2, rank_0_empty}),
    [](const auto& test) { return test.param.name; });

TEST(AveragedByCountStep, WithoutAnyTokenHasZeroGradients) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.skip();
  for (const auto& parameter : net->parameters()) EXPECT_EQ(parameter.grad().abs().max().item<double>(), 0);
  const Case c{"", 1, equal};
  const Batch batch(c, 0);
  Net alone = copy_of(net);
  run_step(ddp, c, batch);
  (sum_of_squares(alone(batch.inputs), batch.targets) / static_cast<double>(batch.tokens())).backward();
  EXPECT_LE(gradient_difference(*net, *alone), kTolerance);
}

TEST(NoSync, KeepsGradientsOnThisRank) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  Net alone = copy_of(net);
  const auto input = rows(3, 1 + static_cast<std::uint64_t>(world().rank()));
  {
    const auto hold = ddp.no_sync();
    ddp.backward(torch::mse_loss(ddp(input), input));
  }
  torch::mse_loss(alone(input), input).backward();
  EXPECT_LE(gradient_difference(*net, *alone), 0);
  EXPECT_EQ(same_bits_everywhere(net->out_bias.grad()), world().size() == 1);
}

TEST(BFloat16, GradientsAreThoseOfTheWholeBatchWithinItsRounding) {
  torch::nn::Linear layer(6, 6);
  layer->to(torch::kBFloat16);
  DistributedDataParallel ddp(layer, world(), small_buckets());
  torch::nn::Linear alone(6, 6);
  {
    const torch::NoGradGuard no_grad;
    alone->weight.copy_(layer->weight);
    alone->bias.copy_(layer->bias);
  }
  const Case c{"", 1, unequal};
  const Batch batch(c, 0);
  const auto input = batch.mine(batch.inputs, 0).to(torch::kBFloat16);
  const auto target = batch.mine(batch.targets, 0).to(torch::kBFloat16);
  ddp.backward(sum_of_squares(ddp(input), target), batch.my_tokens(0));
  (sum_of_squares(alone(batch.inputs.to(torch::kFloat)), batch.targets.to(torch::kFloat)) /
   static_cast<double>(batch.tokens()))
      .backward();
  const auto difference =
      (layer->weight.grad().to(torch::kFloat) - alone->weight.grad()).abs().max().item<double>();
  EXPECT_LE(difference, 0.03 * alone->weight.grad().abs().max().item<double>());
}

}  // namespace
}  // namespace lockstep::testing
