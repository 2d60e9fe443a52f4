// The loader learns the cost of samples and the speeds of ranks, the same on all ranks, and plans with them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "common/error.h"
#include "runtime/data/loader.h"
#include "runtime/data/loader_state.h"
#include "runtime/data/plan/planner.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/profile/step_timer.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;

// Simulates steps whose time follows from their samples and the slowness of the rank, with a little noise.
// The tests use these times instead of measured ones, so that a busy machine does not disturb them.
class Work {
 public:
  Work(double a, double b, double slowness) : a_(a * slowness), b_(b * slowness) {}

  void add(const Batch& batch) {
    const auto* const ends = batch.cu_seqlens.data_ptr<std::int32_t>();
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
      const double length = ends[i + 1] - ends[i];
      seconds_ += a_ * length + b_ * length * length;
      tokens_ += length;
    }
    if (!batch.last_of_step) return;
    noise_ = noise_ * 1664525 + 1013904223;
    last_ = std::exchange(seconds_, 0.0) * (0.998 + 0.004 * (noise_ >> 8U) / double{1U << 24U});
    world().timer().end_step({});
  }
  /// For LoaderOptions::step_seconds; the work must outlive the loader's steps.
  std::function<double()> step_seconds() const {
    return [this] { return last_; };
  }
  // Since the last call.
  double tokens() { return std::exchange(tokens_, 0.0); }

 private:
  double a_;
  double b_;
  double seconds_ = 0;
  double last_ = 0;
  double tokens_ = 0;
  std::uint32_t noise_ = 1;
};

TEST_F(LoaderTest, ASlowerRankGetsLessAndAllRanksLearnTheSame) {
  const int slow = world().size() - 1;
  PlanOptions plan = options(128, 2);
  plan.cost = {40, 1};
  Work work(4e-6, 1e-7, world().rank() == slow ? 3 : 1);
  Loader loader(
      *reader_, plan, world(),
      {.workers = 1, .cost_model = CostModel::learned_with_speeds, .step_seconds = work.step_seconds()});
  std::vector<std::int64_t> seen(kSamples);
  double first = 0;
  double last = 0;
  for (std::uint64_t epoch = 0; epoch < 12; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) {
      work.add(batch);
      for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
        ++seen[static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>())];
      }
    }
    (epoch == 0 ? first : last) = work.tokens();
  }
  world().communicator().all_reduce({seen.data(), seen.size(), comm::DataType::i64}, "seen")->wait();
  EXPECT_THAT(seen, ::testing::Each(12)) << "every sample once in each epoch";
  EXPECT_EQ(loader.cost_coefficients().decisions, 12);
  if (world().size() == 1) return;
  const auto& speeds = loader.cost_coefficients().speeds;
  ASSERT_EQ(speeds.size(), static_cast<std::size_t>(world().size()));
  EXPECT_NEAR(speeds[static_cast<std::size_t>(slow)], 1.0 / 3, 0.02);
  EXPECT_THAT(to_text(loader.cost_coefficients()), HasSubstr("speeds "));
  std::vector<double> most = speeds;
  world()
      .communicator()
      .all_reduce({most.data(), most.size(), comm::DataType::f64}, "speeds", {.op = comm::ReduceOp::max})
      ->wait();
  EXPECT_EQ(most, speeds);
  // The slow rank's part of an epoch, before and after learning.
  double parts[] = {world().rank() == slow ? first : 0, world().rank() == slow ? last : 0, first, last};
  world().communicator().all_reduce({parts, 4, comm::DataType::f64}, "tokens")->wait();
  const double ranks = world().size();
  EXPECT_GT(parts[0] / parts[2], 0.8 / ranks);
  EXPECT_LT(parts[1] / parts[3], 0.7 / ranks);
}

TEST_F(LoaderTest, TheFittedCostIsUsedFromTheNextBlockOnAndItsErrorIsShown) {
  PlanOptions plan = options(128, 2);
  plan.cost = {1, 1};
  Work work(1e-5, 5e-7, 1);
  Loader loader(*reader_, plan, world(),
                {.workers = 1, .cost_model = CostModel::learned, .step_seconds = work.step_seconds()});
  const auto planned_with = [&] {
    return nlohmann::json::parse(state_of(loader))["learnt"]["cost"].get<std::vector<double>>();
  };
  for (std::uint64_t epoch = 0; epoch < 12; ++epoch) {
    loader.set_epoch(epoch);
    bool begun = false;
    const Cost decided = loader.cost_coefficients().cost;
    for (const Batch& batch : loader) {
      if (!begun) {
        EXPECT_EQ(planned_with(), (std::vector<double>{decided.a, decided.b})) << "epoch " << epoch;
      }
      begun = true;
      work.add(batch);
    }
  }
  const CostCoefficients& learnt = loader.cost_coefficients();
  ASSERT_TRUE(learnt.fit.has_value());
  EXPECT_TRUE(learnt.fit_is_used) << to_text(learnt);
  EXPECT_NEAR(learnt.cost.a / learnt.cost.b, 20, 3) << to_text(learnt);
  EXPECT_LT(learnt.fit->error, 0.03);
  EXPECT_THAT(to_text(learnt), HasSubstr("error of a step "));
  EXPECT_TRUE(learnt.speeds.empty());
}

TEST_F(LoaderTest, LearnsFromThePhasesOfTheTimerByDefault) {
  Loader loader(*reader_, options(), world(), {.workers = 1, .cost_model = CostModel::learned});
  const profile::Times before = world().timer().totals();
  for (std::uint64_t epoch = 0; epoch < 4; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) {
      if (!batch.last_of_step) continue;
      {
        const auto scope = world().timer().phase(profile::Phase::forward);
        std::this_thread::sleep_for(std::chrono::microseconds(20 * batch.token_count));
      }
      const auto scope = world().timer().phase(profile::Phase::optimizer);  // no work on samples
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      world().timer().end_step({});
    }
  }
  ASSERT_TRUE(loader.cost_coefficients().fit.has_value());
  // The fit matches the timer's measurements, even if the sleeps were longer than asked for.
  const FittedCost& fit = *loader.cost_coefficients().fit;
  const profile::Times& after = world().timer().totals();
  const auto forward = static_cast<std::size_t>(profile::Phase::forward);
  const double measured = static_cast<double>(after.phase_ns[forward] - before.phase_ns[forward]) * 1e-9 /
                          static_cast<double>(after.steps - before.steps);
  double tokens = 0;
  double squares = 0;
  for (std::size_t i = 0; i < kSamples; ++i) {
    tokens += static_cast<double>(length_of(i));
    squares += static_cast<double>(length_of(i) * length_of(i));
  }
  const double steps = static_cast<double>(after.steps - before.steps) / 4 * world().size();
  const double fitted = fit.fixed + (fit.cost.a * tokens + fit.cost.b * squares) / steps;
  EXPECT_GT(fitted, 0.5 * measured) << to_text(loader.cost_coefficients());
  EXPECT_LT(fitted, 2 * measured) << to_text(loader.cost_coefficients());
}

TEST_F(LoaderTest, LearntCostsAndSpeedsArePartOfTheState) {
  PlanOptions plan = options(128, 2);
  Work work(1e-5, 5e-7, 1 + world().rank());
  const LoaderOptions learning{
      .workers = 1, .cost_model = CostModel::learned_with_speeds, .step_seconds = work.step_seconds()};
  Loader loader(*reader_, plan, world(), learning);
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) work.add(batch);
  }
  loader.set_epoch(6);
  auto at = loader.begin();
  while (!at->last_of_step) ++at;
  const std::string state = state_of(loader);
  Loader resumed(*reader_, plan, world(), learning);
  resume(resumed, state);
  EXPECT_EQ(resumed.cost_coefficients().speeds, loader.cost_coefficients().speeds);
  EXPECT_EQ(resumed.cost_coefficients().cost.a, loader.cost_coefficients().cost.a);
  std::vector<std::int64_t> expected;
  for (++at; !(at == loader.end()) && expected.size() < 6; ++at)
    expected.push_back(at->sample_ids.sum().item<std::int64_t>());
  std::vector<std::int64_t> found;
  for (auto it = resumed.begin(); !(it == resumed.end()) && found.size() < expected.size(); ++it) {
    found.push_back(it->sample_ids.sum().item<std::int64_t>());
  }
  EXPECT_EQ(found, expected);
}

TEST_F(LoaderTest, ACostDecidedInABlockIsUsedAfterResuming) {
  PlanOptions plan = options(128, 2);
  Work work(1e-5, 5e-7, 1);
  const LoaderOptions learning{
      .workers = 1, .cost_model = CostModel::learned, .step_seconds = work.step_seconds()};
  Loader loader(*reader_, plan, world(), learning);
  std::string state;
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) {
      work.add(batch);
      state = state_of(loader);
    }
  }
  const auto cost_of = [](const std::string& text) {
    return nlohmann::json::parse(text)["learnt"]["cost"].get<std::vector<double>>();
  };
  // The decision is in the state. The test changes it there, so that it does not depend on measurements.
  LoaderState changed = state_from_text(state);
  ASSERT_TRUE(changed.learnt.has_value());
  EXPECT_EQ(changed.learnt->cost.a, loader.cost_coefficients().cost.a);
  const std::vector<double> decided{3.5, 0.25};
  ASSERT_NE(cost_of(state), decided);
  changed.learnt->cost = {.a = decided[0], .b = decided[1]};
  state = to_text(changed);
  Loader resumed(*reader_, plan, world(), learning);
  resume(resumed, state);
  EXPECT_EQ(resumed.cost_coefficients().cost.a, decided[0]);
  for (const Batch& batch : resumed) FAIL() << "step " << batch.step << " is of an epoch that is over";
  resumed.set_epoch(6);
  resumed.begin();
  EXPECT_EQ(cost_of(state_of(resumed)), decided);
}

TEST_F(LoaderTest, LeavingTheLoopBeforeADecisionDoesNotHang) {
  Loader loader(*reader_, options(), world(),
                {.workers = 3, .batches_ahead = 200, .cost_model = CostModel::learned_with_speeds});
  for (std::uint64_t epoch = 0; epoch < 6; ++epoch) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) {
      // The workers reach the end of the block, where they wait for the decision.
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      if (batch.step == 0) break;
    }
  }
  EXPECT_THAT(seen_on_all_ranks(loader), ::testing::Each(1));
}

TEST_F(LoaderTest, LearningWithoutAWorldIsRefused) {
  EXPECT_THROW(Loader(*reader_, alone(), 0, nullptr, {.cost_model = CostModel::learned}), UsageError);
}

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
