// Loss scaling: the same gradients as without, and infinities that one rank finds are seen by all.
#include "runtime/train/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "common/error.h"
#include "exporters/record/record.h"
#include "runtime/train/debug.h"
#include "tests/archive_in_memory.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

GradScalerOptions small() {
  return {.initial_scale = 8, .growth_interval = 3};
}

// One parameter of each rank's own, so that a rank can have an infinite gradient alone.
struct Alone {
  torch::Tensor parameter = torch::ones({4}, torch::kDouble).requires_grad_();
  torch::optim::SGD optimizer{{parameter}, torch::optim::SGDOptions(0.5)};

  void set_gradient(double value) { parameter.mutable_grad() = torch::full({4}, value, torch::kDouble); }
  double value() const { return parameter[0].item<double>(); }
};

TEST(GradScaler, GradientsAreThoseWithoutScaling) {
  Alone alone;
  GradScaler scaler(world(), small());
  scaler.scale((alone.parameter * 3).sum()).backward();
  EXPECT_EQ(alone.parameter.grad()[0].item<double>(), 24);
  EXPECT_TRUE(scaler.unscale(alone.optimizer));
  EXPECT_EQ(alone.parameter.grad()[0].item<double>(), 3);
  EXPECT_TRUE(scaler.step(alone.optimizer));
  EXPECT_EQ(alone.value(), -0.5);
  scaler.update();
}

TEST(GradScaler, ADistributedModelHasTheGradientsWithoutScalingInBothAverages) {
  torch::manual_seed(1);
  for (const bool by_count : {true, false}) {
    Net net;
    Net alone = copy_of(net);
    DistributedDataParallel ddp(net, world(), small_buckets());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.0));
    GradScaler scaler(world(), small());
    for (std::uint64_t step = 0; step < 3; ++step) {
      for (std::uint64_t m = 0; m < 2; ++m) {
        const auto hold = ddp.no_sync_unless(m == 1);
        const auto input = rows(3 * world().size(), 10 * step + m);
        const auto mine = my_part(input);
        if (by_count) {
          ddp.backward(scaler.scale(sum_of_squares(ddp(mine), mine)), mine.numel());
        } else {
          scaler.scale(torch::mse_loss(ddp(mine), mine)).backward();
        }
        (torch::mse_loss(alone(input), input) / (by_count ? 2 : 1)).backward();
      }
      EXPECT_TRUE(scaler.unscale(optimizer));
      EXPECT_LE(gradient_difference(*net, *alone), 1e-12) << step;
      EXPECT_TRUE(scaler.step(optimizer));
      scaler.update();
      net->zero_grad();
      alone->zero_grad();
    }
  }
}

TEST(GradScaler, AHalfLossIsScaledAsFloat) {
  const GradScaler scaler(world());  // its scale does not fit into half
  for (const auto type : {torch::kHalf, torch::kBFloat16}) {
    const torch::Tensor loss = torch::full({1}, 2.5, type).requires_grad_();
    const torch::Tensor scaled = scaler.scale(loss);
    EXPECT_EQ(scaled.scalar_type(), torch::kFloat);
    EXPECT_EQ(scaled.item<float>(), 2.5F * 65'536);
    EXPECT_TRUE(scaled.requires_grad());
  }
}

TEST(GradScaler, AParameterThatIsListedTwiceIsUnscaledOnce) {
  const torch::Tensor parameter = torch::ones({4}).requires_grad_();
  torch::optim::SGD optimizer(std::vector<torch::Tensor>{parameter, parameter},
                              torch::optim::SGDOptions(0.5));
  GradScaler scaler(world(), small());
  scaler.scale((parameter * 3).sum()).backward();
  EXPECT_TRUE(scaler.unscale(optimizer));
  EXPECT_EQ(parameter.grad()[0].item<float>(), 3);
}

TEST(GradScaler, AnInfinityOnOneRankSkipsTheStepOnAll) {
  Alone alone;
  GradScaler scaler(world(), small());
  for (const double bad : {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    const double before = scaler.current_scale();
    alone.set_gradient(1);
    if (world().rank() == world().size() - 1) alone.parameter.mutable_grad()[2] = bad;
    EXPECT_FALSE(scaler.step(alone.optimizer));
    scaler.update();
    EXPECT_EQ(alone.value(), 1);
    EXPECT_EQ(scaler.current_scale(), before / 2);
  }
}

TEST(GradScaler, ReadsOneNumberForAllGradients) {
  std::vector<torch::Tensor> parameters;
  for (int i = 1; i < 6; ++i) {
    parameters.push_back(torch::ones({i}, i % 2 == 0 ? torch::kDouble : torch::kFloat).requires_grad_());
    parameters.back().mutable_grad() = torch::ones_like(parameters.back()).detach();
  }
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.5));
  GradScaler scaler(world(), small());
  {
    const SyncDetector detector(torch::kCPU);
    EXPECT_TRUE(scaler.unscale(optimizer));
    EXPECT_EQ(detector.text(), "aten::item (once)");
  }
  scaler.update();
  parameters[3].mutable_grad()[2] = kInfinity;
  EXPECT_FALSE(scaler.step(optimizer));
}

TEST(GradScaler, SkippedStepsAndTheScaleAreInTheRecord) {
  if (world().timer().file().empty()) GTEST_SKIP() << "this job writes no record";
  const auto counters = [] { return record::Reader(world().timer().file()).read().counters; };
  world().timer().end_step({});
  const auto before = counters().skipped_steps;
  Alone alone;
  GradScaler scaler(world(), small());
  for (const double gradient : {1.0, kInfinity, kInfinity}) {
    alone.set_gradient(gradient);
    scaler.step(alone.optimizer);
    scaler.update();
  }
  world().timer().end_step({});
  EXPECT_EQ(counters().skipped_steps, before + 2);
  EXPECT_EQ(counters().loss_scale, 2);
}

TEST(GradScaler, GrowsAfterGoodStepsInARow) {
  Alone alone;
  GradScaler scaler(world(), small());
  std::vector<double> scales;
  for (const double gradient : {1.0, 1.0, kInfinity, 1.0, 1.0, 1.0, 1.0}) {
    alone.set_gradient(gradient);
    scaler.step(alone.optimizer);
    scaler.update();
    scales.push_back(scaler.current_scale());
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(8, 8, 4, 4, 4, 8, 8));
  GradScaler largest(world(), {.initial_scale = 2e38, .growth_interval = 1});
  alone.set_gradient(1);
  largest.step(alone.optimizer);
  largest.update();
  EXPECT_EQ(largest.current_scale(), 2e38) << "twice as much is infinite in float";
}

TEST(GradScaler, AnInfinityOfOneOptimizerLowersTheScaleOfAll) {
  Alone first;
  Alone second;
  GradScaler scaler(world(), small());
  for (Alone* const bad : {&first, &second}) {
    const double before = scaler.current_scale();
    for (Alone* const one : {&first, &second}) {
      one->set_gradient(one == bad ? kInfinity : 1.0);
      EXPECT_EQ(scaler.step(one->optimizer), one != bad);
    }
    scaler.update();
    EXPECT_EQ(scaler.current_scale(), before / 2);
  }
}

TEST(GradScaler, StateContinuesInAnotherScaler) {
  Alone alone;
  GradScaler first(world(), small());
  for (int i = 0; i < 2; ++i) {
    alone.set_gradient(1);
    first.step(alone.optimizer);
    first.update();
  }
  GradScaler second(world(), small());
  load_from(second, [&](auto& archive) { first.save(archive); });
  alone.set_gradient(1);
  second.step(alone.optimizer);
  second.update();
  EXPECT_EQ(second.current_scale(), 16) << "the third good step";
  const auto without_scale = [](auto& archive) {
    archive.write("scale", 0.0);
    archive.write("good_steps", 0);
  };
  EXPECT_THROW(load_from(second, without_scale), Error);
}

TEST(GradScaler, TheDistributedOptimizerSkipsTogether) {
  torch::manual_seed(1);
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.1));
  GradScaler scaler(world(), small());
  const auto weight = [&] { return net->first->weight.detach().clone(); };

  const auto before = weight();
  const double factor = world().rank() == 0 ? kInfinity : 1.0;
  ddp.backward(scaler.scale(ddp(rows(2, 1)).sum() * factor), 2);
  EXPECT_FALSE(scaler.step(optimizer));
  scaler.update();
  EXPECT_TRUE(torch::equal(weight(), before));
  optimizer.zero_grad();

  ddp.backward(scaler.scale(ddp(rows(2, 1)).sum()), 2);
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  EXPECT_FALSE(torch::equal(weight(), before));
  EXPECT_TRUE(same_bits_everywhere(weight()));
}

TEST(GradScaler, DisabledItDoesNothing) {
  Alone alone;
  GradScaler scaler(world(), {.enabled = false});
  alone.set_gradient(2);
  EXPECT_TRUE(scaler.step(alone.optimizer));
  scaler.update();
  EXPECT_EQ(alone.value(), 0);
  EXPECT_EQ(scaler.current_scale(), 1);
}

TEST(GradScaler, CallsInTheWrongOrderAreRefused) {
  Alone alone;
  GradScaler scaler(world(), small());
  EXPECT_THAT(error_of([&] { scaler.update(); }), HasSubstr("before any optimizer's"));
  alone.set_gradient(1);
  scaler.unscale(alone.optimizer);
  EXPECT_THAT(error_of([&] { scaler.unscale(alone.optimizer); }), HasSubstr("twice"));
  scaler.step(alone.optimizer);
  EXPECT_THAT(error_of([&] { scaler.step(alone.optimizer); }), HasSubstr("twice"));
}

TEST(GradScaler, HalfGradientsAreRefused) {
  torch::Tensor parameter = torch::ones({2}, torch::kHalf).requires_grad_();
  torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(0.5));
  parameter.mutable_grad() = torch::ones({2}, torch::kHalf);
  GradScaler scaler(world(), small());
  EXPECT_THAT(error_of([&] { scaler.unscale(optimizer); }), HasSubstr("keep the parameters in float"));
}

TEST(GradScaler, OptionsThatMakeNoSenseAreRefused) {
  EXPECT_THROW(GradScaler(world(), {.initial_scale = -1}), UsageError);
  EXPECT_THROW(GradScaler(world(), {.growth_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler(world(), {.backoff_factor = 1}), UsageError);
  EXPECT_THROW(GradScaler(world(), {.growth_interval = 0}), UsageError);
}

}  // namespace
}  // namespace lockstep::testing
