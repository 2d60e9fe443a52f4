// Uneven inputs, and other cases from PyTorch's tests of DistributedDataParallel.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/clock.h"
#include "common/error.h"
#include "exporters/record/record.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

torch::nn::Linear one_weight() {
  torch::nn::Linear layer(torch::nn::LinearOptions(1, 1).bias(false));
  return layer;
}

// Every rank's gradient is 50; rank 0 ends after three steps, the others after five.
std::vector<double> gradients_under_join(bool divide_by_initial_world_size) {
  auto layer = one_weight();
  DistributedDataParallel ddp(layer, world(), small_buckets());
  std::vector<double> gradients;
  ddp.join(
      [&] {
        const int steps = world().rank() == 0 ? 3 : 5;
        for (int step = 0; step < steps; ++step) {
          ddp(torch::full({1, 1}, 50.0F)).sum().backward();
          gradients.push_back(layer->weight.grad().item<double>());
          layer->zero_grad();
        }
      },
      {.divide_by_initial_world_size = divide_by_initial_world_size});
  return gradients;
}

TEST(Join, DividesByTheRanksThatStillHaveData) {
  const auto gradients = gradients_under_join(false);
  EXPECT_EQ(gradients.size(), world().rank() == 0 ? 3U : 5U);
  for (const double gradient : gradients) EXPECT_FLOAT_EQ(gradient, 50);
}

TEST(Join, DividesByAllRanks) {
  const auto gradients = gradients_under_join(true);
  const double ranks = world().size();
  for (std::size_t step = 0; step < gradients.size(); ++step)
    EXPECT_FLOAT_EQ(gradients[step], step < 3 ? 50 : 50 * (ranks - 1) / ranks) << "step " << step;
}

TEST(Join, TrainsLikeOneProcessThatAveragesTheRemainingRanks) {
  const auto steps_of = [](int rank) { return 2 + 2 * rank; };
  const auto input_of = [](int rank, int step) {
    return rows(3, static_cast<std::uint64_t>(100 * step + rank));
  };
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  Net alone = copy_of(net);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  ddp.join(
      [&] {
        for (int step = 0; step < steps_of(world().rank()); ++step) {
          const auto input = input_of(world().rank(), step);
          torch::mse_loss(ddp(input), input).backward();
          optimizer.step();
          optimizer.zero_grad();
        }
      },
      {.divide_by_initial_world_size = false});

  torch::optim::SGD alone_optimizer(alone->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < steps_of(world().size() - 1); ++step) {
    torch::Tensor loss = torch::zeros({}, torch::kDouble);
    int active = 0;
    for (int rank = 0; rank < world().size(); ++rank) {
      if (step >= steps_of(rank)) continue;
      ++active;
      loss = loss + torch::mse_loss(alone(input_of(rank, step)), input_of(rank, step));
    }
    (loss / active).backward();
    alone_optimizer.step();
    alone_optimizer.zero_grad();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i) {
    EXPECT_TRUE(same_bits_everywhere(net->parameters()[i]));
    EXPECT_LE((net->parameters()[i] - alone->parameters()[i]).abs().max().item<double>(), 1e-12);
  }
}

TEST(Join, GivesAllRanksTheBuffersOfTheRankThatEndedLast) {
  torch::nn::BatchNorm1d norm(6);
  norm->to(torch::kDouble);
  DistributedDataParallel ddp(norm, world(), small_buckets());
  const int steps = 1 + world().rank() % 2 + 2 * (world().rank() == 0 ? 1 : 0);  // rank 0 ends last
  ddp.join([&] {
    for (int step = 0; step < steps; ++step) {
      ddp(rows(4, static_cast<std::uint64_t>(10 * step + world().rank()))).sum().backward();
      norm->zero_grad();
    }
  });
  EXPECT_EQ(norm->num_batches_tracked.item<std::int64_t>(), 3);
  EXPECT_TRUE(same_bits_everywhere(norm->running_mean));
}

// After the first epoch, ranks are at different points between two synchronisations.
TEST(Join, CanBeUsedForEachEpochWithBuffersAndAccumulation) {
  torch::nn::BatchNorm1d norm(6);
  norm->to(torch::kDouble);
  DistributedDataParallel ddp(norm, world(), small_buckets());
  for (int epoch = 0; epoch < 2; ++epoch) {
    ddp.join([&] {
      for (int i = 0; i < (world().rank() == 0 ? 3 : 4); ++i) {
        const auto hold = ddp.no_sync_unless(i % 2 == 1);
        ddp(rows(4, static_cast<std::uint64_t>(10 * i + world().rank()))).sum().backward();
        if (i % 2 == 1) norm->zero_grad();
      }
    });
    EXPECT_TRUE(same_bits_everywhere(norm->running_mean));
    norm->zero_grad();
  }
}

TEST(Join, TakesPartInAccumulationAndUnusedParameters) {
  Net net;
  auto options = small_buckets();
  options.find_unused_parameters = true;
  DistributedDataParallel ddp(net, world(), options);
  int steps = 0;
  ddp.join([&] {
    for (int step = 0; step < 2 + world().rank(); ++step, ++steps) {
      for (int m = 0; m < 2; ++m) {
        const auto hold = ddp.no_sync_unless(m == 1);
        ddp(rows(2, 1)).sum().backward();
      }
      EXPECT_GT(net->out_bias.grad().abs().sum().item<double>(), 0);
      net->zero_grad();
      const torch::NoGradGuard no_grad;
      ddp(rows(2, 1));  // an evaluation, which the others must not wait for
    }
  });
  EXPECT_EQ(steps, 2 + world().rank());
}

TEST(Join, EndsOnAllRanksWithTheFirstIfAsked) {
  auto layer = one_weight();
  DistributedDataParallel ddp(layer, world(), small_buckets());
  int done = 0;
  const auto error = error_of([&] {
    ddp.join(
        [&] {
          for (; done < 3 + world().rank(); ++done) ddp(torch::ones({1, 1})).sum().backward();
        },
        {.throw_on_early_termination = true});
  });
  if (world().size() == 1) {
    EXPECT_EQ(error, "no error");
  } else {
    EXPECT_THAT(error, HasSubstr("has no more data"));
    EXPECT_EQ(done, 3);
  }
}

TEST(Join, RefusesACountAndAModelAveragedByCount) {
  auto layer = one_weight();
  DistributedDataParallel ddp(layer, world());
  const auto backward = [&] { ddp.backward(ddp(torch::ones({1, 1})).sum(), 1); };
  EXPECT_THAT(error_of([&] {
                const auto hold = ddp.no_sync();
                ddp.join(backward);
              }),
              HasSubstr("call skip()"));
  backward();
  EXPECT_THAT(error_of([&] { ddp.join([] {}); }), HasSubstr("call skip()"));
}

TEST(Join, CanBeSwitchedOff) {
  auto layer = one_weight();
  DistributedDataParallel ddp(layer, world(), small_buckets());
  ddp.join([&] { ddp(torch::ones({1, 1})).sum().backward(); }, {.enable = false});
  EXPECT_FLOAT_EQ(layer->weight.grad().item<float>(), 1);
}

// As PyTorch's test of accumulation: one iteration of every `period` is synchronised, the last one.
void check_accumulation(int period, bool as_view) {
  auto options = small_buckets();
  options.gradient_as_bucket_view = as_view;
  Net net;
  DistributedDataParallel ddp(net, world(), options);
  Net alone = copy_of(net);
  for (int iteration = 0; iteration < 2 * period; ++iteration) {
    const auto input = rows(2 * world().size(), 300 + static_cast<std::uint64_t>(iteration));
    const auto mine = my_part(input);
    const bool synchronised = iteration % period == period - 1;
    {
      const auto hold = ddp.no_sync_unless(synchronised);
      torch::mse_loss(ddp(mine), mine).backward();
    }
    torch::mse_loss(alone(input), input).backward();
    if (synchronised) {
      EXPECT_LE(gradient_difference(*net, *alone), 1e-12) << "iteration " << iteration;
      net->zero_grad();
      alone->zero_grad();
    } else {
      EXPECT_EQ(same_bits_everywhere(net->out_bias.grad()), world().size() == 1);
    }
  }
}

TEST(Accumulation, AtOddAndEvenIterations) {
  for (const bool as_view : {true, false}) {
    check_accumulation(1, as_view);
    check_accumulation(2, as_view);
    check_accumulation(3, as_view);
  }
}

TEST(Lateness, NamesTheRankThatWasWaitedFor) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const int late = world().size() - 1;
  bool named = false;
  // Another process may delay one of the other ranks for as long, but not in every step.
  for (int step = 0; step < 20 && !any_rank(named); ++step) {
    const auto loss = ddp(rows(2, 1)).sum();
    world().communicator().barrier("the start")->wait();
    const std::uint64_t begin = monotonic_ns();
    while (world().rank() == late && seconds_between(begin, monotonic_ns()) < 0.02) {
    }
    loss.backward();
    const auto& share = ddp.reducer().observer().share();
    named = world().rank() != late && share.late_rank == late && share.wait_ns > 5'000'000;
    if (named) {
      EXPECT_LT(share.transfer_ns, 20'000'000U);
    }
    for (const auto& launch : ddp.trace().launches) {
      EXPECT_LE(launch.ready_ns, launch.asked_ns);
      EXPECT_LE(launch.asked_ns, launch.done_ns);
    }
    net->zero_grad();
  }
  EXPECT_TRUE(any_rank(named));
}

TEST(Lateness, IsWrittenToTheRecord) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  profile::StepTimer& timer = world().timer();
  if (timer.file().empty()) GTEST_SKIP() << "there is no record here";
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  timer.begin_step();
  const record::Reader reader(timer.file());
  const auto before = reader.read().counters;
  for (int step = 0; step < 3; ++step) {
    ddp(rows(2, 1)).sum().backward();
    timer.end_step({.tokens = 1, .samples = 1, .padding = 0});
    net->zero_grad();
  }
  const auto after = reader.read().counters;
  EXPECT_TRUE(after.communication_measured());
  EXPECT_GT(after.comm_transfer_ns, before.comm_transfer_ns);
}

}  // namespace
}  // namespace lockstep::testing
