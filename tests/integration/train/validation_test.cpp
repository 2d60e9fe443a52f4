// A validation on several ranks gives what one process computes from all samples at once.
#include "runtime/train/validation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "runtime/ddp/collectives.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

torch::Tensor targets_of(std::int64_t count) {
  return torch::arange(count).remainder(6);
}

TEST(Validation, SharesHoldEachSampleOnce) {
  for (const std::int64_t samples : {0, 1, 2, 3, 7, 12}) {
    const auto [begin, end] = share_of(world(), samples);
    const auto seen = torch::zeros(samples, torch::kLong);
    seen.slice(0, begin, end) += 1;
    all_reduce(world(), seen, ReduceOp::sum, "samples");
    EXPECT_TRUE(torch::equal(seen, torch::ones(samples, torch::kLong))) << samples;
    EXPECT_LE(end - begin, (samples + world().size() - 1) / world().size());
  }
}

// Also with fewer samples than ranks, and with batches that do not divide the share.
TEST(Validation, IsTheResultOfOneProcessOnAllSamples) {
  torch::manual_seed(1);
  Net net;
  for (const std::int64_t samples : {1, 2, 7, 16}) {
    const auto inputs = rows(samples, 4);
    auto targets = targets_of(samples);
    if (samples > 2) targets[1] = -100;
    const auto logits = net(inputs).detach();
    const auto counted = targets.ne(-100);
    const double loss = torch::nn::functional::cross_entropy(logits, targets).item<double>();
    const double hits = logits.argmax(1).eq(targets).sum().item<double>();

    Validation validation(world(), *net);
    const auto [begin, end] = share_of(world(), samples);
    for (std::int64_t i = begin; i < end; i += 3) {
      const std::int64_t last = std::min(i + 3, end);
      validation.add_classes(net(inputs.slice(0, i, last)), targets.slice(0, i, last));
    }
    const auto result = validation.result();
    EXPECT_NEAR(result.loss, loss, 1e-12) << samples;
    EXPECT_NEAR(result.perplexity, std::exp(loss), 1e-10);
    EXPECT_EQ(result.items, counted.sum().item<std::int64_t>());
    EXPECT_DOUBLE_EQ(result.accuracy.value(), hits / static_cast<double>(result.items));
  }
}

// The program calls the module itself, so only the scope tells the timer.
TEST(Validation, EndsTheStepAndItsTimeBelongsToNone) {
  constexpr auto kLong = std::chrono::milliseconds(50);
  profile::StepTimer& timer = world().timer();
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto train = [&] {
    net->zero_grad();
    ddp.backward(ddp(rows(2, 1)).square().sum(), 4);
  };
  timer.begin_step();  // ends the step of an earlier test
  const auto steps = timer.totals().steps;
  train();
  {
    const Validation validation(world(), *net);
    EXPECT_EQ(timer.totals().steps, steps + 1);
    for (const auto until = std::chrono::steady_clock::now() + kLong;
         std::chrono::steady_clock::now() < until;)
      net(rows(2, 1));
  }
  const auto begin = std::chrono::steady_clock::now();
  train();
  timer.begin_step();
  const std::chrono::nanoseconds trained = std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(timer.totals().steps, steps + 2);
  EXPECT_LT(timer.last_step().step_ns, static_cast<std::uint64_t>((trained + kLong / 2).count()));
}

TEST(Validation, SumsOfLossesAreDividedByAllItems) {
  Net net;
  Validation validation(world(), *net);
  const double rank = world().rank();
  validation.add(torch::full({}, 3 * rank), world().rank());
  const auto result = [&] { return validation.result(); };
  if (world().size() == 1) {
    EXPECT_THAT(error_of(result), HasSubstr("no rank has added an item"));
    return;
  }
  EXPECT_DOUBLE_EQ(result().loss, 3);
  EXPECT_FALSE(result().accuracy.has_value());
}

TEST(Validation, SwitchesTheModuleAndSwitchesItBack) {
  Net net;
  net->norm->eval();
  {
    const Validation validation(world(), *net);
    EXPECT_FALSE(net->is_training());
    EXPECT_FALSE(net->first->is_training());
    EXPECT_FALSE(torch::GradMode::is_enabled());
  }
  EXPECT_TRUE(net->is_training());
  EXPECT_TRUE(net->first->is_training());
  EXPECT_FALSE(net->norm->is_training()) << "it was in evaluation before";
  EXPECT_TRUE(torch::GradMode::is_enabled());
}

}  // namespace
}  // namespace lockstep::testing
