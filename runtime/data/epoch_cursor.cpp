#include "runtime/data/epoch_cursor.h"

#include <utility>

#include "common/launcher.h"

namespace lockstep::data {

void EpochCursor::move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner) {
  planned_ = {};  // waits
  planned_epoch_ = epoch_ = epoch;
  planner_ = std::move(planner);
  block_ = nullptr;
  ended_ = false;
}

// In the calling thread, or in that of planned_.
EpochCursor::Block EpochCursor::plan_next() {
  if (!planner_) {
    PlanOptions options = options_.plan;
    options.epoch = planned_epoch_;
    planner_ = make_(options);
  }
  auto next = std::make_shared<EpochBlock>();
  next->epoch = planned_epoch_;
  if (planner_->next_block(next->block)) return next;
  planner_ = nullptr;
  ++planned_epoch_;
  return nullptr;
}

std::future<EpochCursor::Block> EpochCursor::plan_in_background() {
  return std::async(std::launch::async, [this] {
    use_background_cpus();
    return plan_next();
  });
}

std::optional<MicroBatch> EpochCursor::next() {
  if (ended_) return std::nullopt;
  while (!block_ || step_ >= block_->block.plan.steps()) {
    block_ = planned_.valid() ? planned_.get() : plan_next();
    if (!block_) {
      ended_ = !options_.follow;
      return MicroBatch{.epoch = epoch_++};
    }
    step_ = 0;
    index_ = 0;
  }
  const Plan& plan = block_->block.plan;
  // Half a block ahead is early enough, and jobs that end in the first half of a block save the planning.
  if (!planned_.valid() && step_ >= plan.steps() / 2) planned_ = plan_in_background();
  const MicroBatch next{.block = block_,
                        .epoch = epoch_,
                        .step = step_,
                        .index = index_++,
                        .count = plan.micro_batches(step_, options_.rank)};
  if (next.last_of_step()) {
    ++step_;
    index_ = 0;
  }
  return next;
}

}  // namespace lockstep::data
