#include "runtime/data/plan/epoch_cursor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <vector>

#include "runtime/data/plan/epoch_planner.h"

namespace lockstep::data {
namespace {

// Is told of another cost, and takes its time to look at it.
class SlowPlanner final : public BlockwisePlanner {
 public:
  SlowPlanner(const LengthSource& source, const PlanOptions& options) : planner_(source, options) {}
  bool next_block(PlannedBlock& block) override { return planner_.next_block(block); }
  PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const override {
    return planner_.state_after(block, micro_batches);
  }
  void change(const Cost& cost, const std::vector<double>& speeds) override {
    changing.set_value();
    may_look.get_future().wait_for(std::chrono::milliseconds(100));
    changed_to = cost;
    planner_.change(cost, speeds);
  }
  const PlanState& next_start() const override { return planner_.next_start(); }
  void go_to(const PlanState& start) override { planner_.go_to(start); }

  std::promise<void> changing;
  std::promise<void> may_look;
  Cost changed_to;

 private:
  EpochPlanner planner_;
};

// As where a loop is left while the next block is planned, and begun again.
TEST(EpochCursor, ACostThatIsSetWhileABlockIsPlannedIsNotThatBlocks) {
  const std::vector<std::uint32_t> lengths(400, 10);
  const LengthsInMemory source(lengths, "data");
  const PlanOptions plan{.ranks = 2, .cap = 100, .cost = {7, 1}};
  const auto planner = std::make_shared<SlowPlanner>(source, plan);
  EpochCursor cursor(
      [&](const PlanOptions& options) { return std::make_shared<EpochPlanner>(source, options); },
      {.plan = plan, .told = true});
  cursor.move_to(0, planner);
  ASSERT_TRUE(cursor.next()->block);
  cursor.plan_on({5, 1}, {});
  planner->changing.get_future().wait();
  cursor.set({9, 1}, {});
  planner->may_look.set_value();
  cursor.move_to(1, nullptr);
  EXPECT_EQ(planner->changed_to.a, 5);
  EXPECT_EQ(cursor.next()->block->block.start.geometry.cost.a, 9);
}

}  // namespace
}  // namespace lockstep::data
