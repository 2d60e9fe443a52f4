#include "runtime/data/epoch_cursor.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "common/leaf/cpu_list.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

// Waits in change(), so that the test can act meanwhile.
class SlowPlanner final : public EpochPlanner {
 public:
  using EpochPlanner::EpochPlanner;
  void change(const Cost& cost, const std::vector<double>& speeds) override {
    changing.set_value();
    may_look.get_future().wait_for(std::chrono::milliseconds(100));
    changed_to = cost;
    EpochPlanner::change(cost, speeds);
  }

  std::promise<void> changing;
  std::promise<void> may_look;
  Cost changed_to;
};

// A cursor that has planned its first block with a planner of this kind, and plans the next one with other costs.
template <typename Planner>
struct PlansOn {
  std::vector<std::uint32_t> lengths = std::vector<std::uint32_t>(400, 10);
  LengthsInMemory source{lengths, "data"};
  PlanOptions plan{.ranks = 2, .cap = 100, .cost = {7, 1}};
  std::shared_ptr<Planner> planner = std::make_shared<Planner>(source, plan);
  EpochCursor cursor{
      [this](const PlanOptions& options) { return std::make_shared<EpochPlanner>(source, options); },
      {.plan = plan, .waits_for_costs = true}};

  PlansOn() {
    cursor.move_to(0, planner);
    EXPECT_TRUE(cursor.next()->block);
    cursor.plan_on({5, 1}, {});
  }
};

// This happens if a loop ends while the next block is planned, and begins again.
TEST(EpochCursor, ACostSetWhileABlockIsPlannedDoesNotChangeThatBlock) {
  PlansOn<SlowPlanner> world;
  world.planner->changing.get_future().wait();
  world.cursor.set({9, 1}, {});
  world.planner->may_look.set_value();
  world.cursor.move_to(1, nullptr);
  EXPECT_EQ(world.planner->changed_to.a, 5);
  EXPECT_EQ(world.cursor.next()->block->block.plan.options().cost.a, 9);
}

// Remembers on which CPUs it was called.
class BoundPlanner final : public EpochPlanner {
 public:
  using EpochPlanner::EpochPlanner;
  void change(const Cost& cost, const std::vector<double>& speeds) override {
    cpus.set_value(cpus_of_this_thread());
    EpochPlanner::change(cost, speeds);
  }

  std::promise<std::vector<int>> cpus;
};

TEST(EpochCursor, PlansAheadOnTheWorkersCpus) {
  const std::vector<int> all = cpus_of_this_thread();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  const int worker = all.back();
  ::setenv("LOCKSTEP_WORKER_CPUS", std::to_string(worker).c_str(), 1);
  const PlansOn<BoundPlanner> world;
  EXPECT_EQ(world.planner->cpus.get_future().get(), std::vector<int>{worker});
  ::unsetenv("LOCKSTEP_WORKER_CPUS");
  EXPECT_EQ(cpus_of_this_thread(), all);
}

// A step has four samples for three ranks: one rank has two micro-batches, the others have one.
TEST(EpochCursor, GivesEachRankItsMicroBatchesAndOneEmptyValueForAStepWithoutAny) {
  const std::vector<std::uint32_t> lengths(14, 10);
  const LengthsInMemory source(lengths, "data");
  const PlanOptions plan{.ranks = 3, .cap = 10, .step_tokens = 40, .step_stretch = 1};
  std::vector<int> uses(14);
  std::size_t without = 0;
  for (int rank = 0; rank < 3; ++rank) {
    EpochCursor cursor(
        [&](const PlanOptions& options) { return std::make_shared<EpochPlanner>(source, options); },
        {.plan = plan, .rank = rank, .follow = false});
    cursor.move_to(0, nullptr);
    std::uint64_t steps = 0;
    std::size_t index = 0;
    for (auto next = cursor.next(); next->block; next = cursor.next()) {
      EXPECT_EQ(next->step_of_epoch(), steps);
      EXPECT_EQ(next->index, index);
      EXPECT_EQ(next->samples(rank).size(), next->count == 0 ? 0U : 1U);
      if (next->count == 0) ++without;
      for (const SampleId id : next->samples(rank)) ++uses[id];
      index = next->last_of_step() ? 0 : index + 1;
      if (next->last_of_step()) ++steps;
    }
    EXPECT_EQ(steps, 4U);
    EXPECT_FALSE(cursor.next());
  }
  EXPECT_EQ(uses, std::vector<int>(14, 1));
  EXPECT_EQ(without, 1U) << "the last step has two samples";
}

}  // namespace
}  // namespace lockstep::data
