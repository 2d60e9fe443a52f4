// How a program calls backward decides how its gradients are averaged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// The training loop of a program for one process. Under DistributedDataParallel only `forward` and the rows differ.
template <typename Forward>
void train(Net& net, Forward& forward, const std::function<torch::Tensor(const torch::Tensor&)>& part) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::uint64_t step = 0; step < 6; ++step) {
    const auto inputs = part(rows(4 * world().size(), step));
    const auto targets = part(rows(4 * world().size(), 100 + step));
    optimizer.zero_grad();
    const auto loss = torch::mse_loss(forward(inputs), targets);
    loss.backward();
    optimizer.step();
  }
}

TEST(PlainLoop, TrainsTheModelOfOneProcessWithoutAnyOption) {
  Net net;
  DistributedDataParallel ddp(net, world());
  Net alone = copy_of(net);
  train(net, ddp, my_part);
  train(alone, alone, [](const torch::Tensor& all) { return all; });
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits_everywhere(net->parameters()[i]));
    EXPECT_LE((net->parameters()[i] - alone->parameters()[i]).abs().max().item<double>(), 1e-9);
  }
}

TEST(Averaging, OverRanksIsTheSameForBothCallsToTheBit) {
  Net net;
  Net other = copy_of(net);
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedDataParallel ddp_other(other, world(), small_buckets());
  for (std::uint64_t step = 0; step < 3; ++step) {
    const auto input = my_part(rows(2 * world().size(), step));
    ddp(input).square().mean().backward();
    ddp_other.backward(ddp_other(input).square().mean());
    EXPECT_EQ(gradient_difference(*net, *other), 0);
  }
}

TEST(AveragedOverRanks, StepsInWhichRankZeroSkipsCountItsZeros) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  Net alone = copy_of(net);
  for (int step = 0; step < 4; ++step) {
    const int first = world().size() > 1 && step < 2 ? 1 : 0;  // of the ranks with data
    for (std::uint64_t m = 0; m < 2; ++m) {
      const auto loss_of = [&](auto& model, int rank) {
        const auto input = rows(2 + rank, 100 * static_cast<std::uint64_t>(10 * step + rank) + m);
        return torch::mse_loss(model(input), input);
      };
      const auto hold = ddp.no_sync_unless(m == 1);
      if (world().rank() < first) {
        ddp.skip();
      } else {
        loss_of(ddp, world().rank()).backward();
      }
      for (int rank = first; rank < world().size(); ++rank)
        (loss_of(alone, rank) / world().size()).backward();
    }
    EXPECT_LE(gradient_difference(*net, *alone), 1e-12) << "step " << step;
    net->zero_grad();
    alone->zero_grad();
  }
}

// In the first step the loss is not scaled with the sum of a step before.
TEST(AveragedByCountStep, AsTheFirstOneHasTheBitsOfLaterOnes) {
  for (const auto type : {torch::kDouble, torch::kFloat, torch::kBFloat16}) {
    torch::nn::Sequential net(torch::nn::Linear(6, 8), torch::nn::Tanh(), torch::nn::Linear(8, 6));
    net->to(type);
    DistributedDataParallel ddp(net, world(), small_buckets());
    std::vector<torch::Tensor> first;
    for (int step = 0; step < 3; ++step) {
      for (int m = 0; m < 2; ++m) {
        const auto hold = ddp.no_sync_unless(m == 1);
        const auto input = rows(1 << 2 * world().rank(), 1 + static_cast<std::uint64_t>(m)).to(type);
        ddp.backward(ddp(input).square().sum(), input.size(0));
      }
      for (std::size_t i = 0; i < net->parameters().size(); ++i) {
        const auto gradient = net->parameters()[i].grad();
        if (step == 0) first.push_back(gradient.clone());
        EXPECT_TRUE(torch::equal(gradient, first[i])) << type << ", step " << step;
      }
      net->zero_grad();
    }
  }
}

// A forward and backward of two rows.
template <typename Ddp>
void run(Ddp& ddp, bool by_count) {
  const auto loss = ddp(rows(2, 1)).sum();
  if (by_count) {
    ddp.backward(loss, 2);
  } else {
    loss.backward();
  }
}

TEST(AveragedByCount, GradientsThatWereNotZeroedAreNotAveragedAgain) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  run(ddp, true);
  const auto gradient = net->out_bias.grad().clone();
  const auto no_sync = [&] {
    const auto hold = ddp.no_sync();
    run(ddp, true);
  };
  const std::function<void()> wrong[] = {[&] { run(ddp, true); }, [&] { ddp.skip(); }, no_sync};
  for (const auto& call : wrong) EXPECT_THAT(error_of(call), HasSubstr("have not been zeroed"));
  EXPECT_TRUE(torch::equal(net->out_bias.grad(), gradient));
  const std::function<void()> zero[] = {
      [&] { net->zero_grad(); },
      [&] { set_gradients_to_none(*net); },
      [&] {
        for (auto& parameter : net->parameters()) parameter.mutable_grad().data().zero_();
      },
      [&] { net->out_bias.mutable_grad().zero_(); },  // by one of two optimizers
      [&] { ddp.discard(); },
  };
  for (const auto& zero_gradients : zero) {
    zero_gradients();
    run(ddp, true);
  }
  net->zero_grad();
  ddp.skip();  // on all ranks: it leaves zeros
  run(ddp, true);
  EXPECT_TRUE(torch::equal(net->out_bias.grad(), gradient));
}

TEST(AveragedOverRanks, GradientsOfSeveralBackwardsAddUpAsInPyTorch) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  run(ddp, false);
  run(ddp, false);
}

TEST(Mixing, InOneStepIsRefused) {
  for (const bool first_by_count : {true, false}) {
    Net net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    {
      const auto hold = ddp.no_sync();
      run(ddp, first_by_count);
    }
    EXPECT_THAT(error_of([&] { run(ddp, !first_by_count); }),
                HasSubstr(first_by_count ? "call ddp.backward(loss_sum, count) for every loss"
                                         : "call loss.backward() for every loss"));
  }
}

TEST(Mixing, OfLaterStepsIsRefused) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  // A rank that skipped knows the mode from the others.
  if (world().size() > 1 && world().rank() == 0) {
    ddp.skip();
  } else {
    run(ddp, true);
  }
  EXPECT_THAT(error_of([&] { ddp.backward(ddp(rows(2, 1)).sum()); }), HasSubstr("averaged by count before"));
}

TEST(Mixing, BetweenRanksIsRefusedOnAllOfThem) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  for (const int counts : {0, world().size() - 1}) {
    Net net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    const std::string error = error_of([&] { run(ddp, world().rank() == counts); });
    EXPECT_THAT(error, HasSubstr(fmt::format("rank {} called loss.backward()", counts == 0 ? 1 : 0)));
    EXPECT_THAT(error, HasSubstr(fmt::format("rank {} called ddp.backward(loss_sum, count)", counts)));
    EXPECT_THAT(error_of([&] { ddp(rows(2, 1)); }), HasSubstr("backward threw"));
  }
}

}  // namespace
}  // namespace lockstep::testing
