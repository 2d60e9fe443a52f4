#include "runtime/data/epoch_cursor.h"

#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <future>
#include <memory>
#include <vector>

#include "common/leaf/cpu_list.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

// Remembers on which CPUs it planned the end of the epoch.
class BoundPlanner final : public EpochPlanner {
 public:
  using EpochPlanner::EpochPlanner;
  bool next_block(PlannedBlock& block) override {
    const bool more = EpochPlanner::next_block(block);
    if (!more) cpus.set_value(cpus_of_this_thread());
    return more;
  }

  std::promise<std::vector<int>> cpus;
};

TEST(EpochCursor, PlansAheadOnTheWorkersCpus) {
  const std::vector<int> all = cpus_of_this_thread();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  const int worker = all.back();
  ::setenv("LOCKSTEP_WORKER_CPUS", std::to_string(worker).c_str(), 1);
  const std::vector<std::uint32_t> lengths(400, 10);
  const LengthsInMemory source(lengths, "data");
  const PlanOptions plan{.ranks = 2, .cap = 100};
  const auto planner = std::make_shared<BoundPlanner>(source, plan);
  EpochCursor cursor([](const PlanOptions&) { return nullptr; }, {.plan = plan, .follow = false});
  cursor.move_to(0, planner);
  while (cursor.next()->block) {
  }
  EXPECT_EQ(planner->cpus.get_future().get(), std::vector<int>{worker});
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
