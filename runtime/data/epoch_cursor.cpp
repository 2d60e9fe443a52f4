#include "runtime/data/epoch_cursor.h"

#include <utility>

namespace lockstep::data {

void EpochCursor::move_to(std::uint64_t epoch, std::shared_ptr<EpochPlanner> planner) {
  if (planned_.valid()) planned_.wait();
  planned_ = {};
  planned_epoch_ = epoch_ = epoch;
  planner_ = std::move(planner);
  block_ = nullptr;
  over_ = false;
}

EpochCursor::Block EpochCursor::plan_next() {
  if (!planner_) {
    PlanOptions options = options_;
    options.epoch = planned_epoch_;
    planner_ = std::make_shared<EpochPlanner>(lengths_, options);
  }
  auto next = std::make_shared<EpochBlock>();
  next->epoch = planned_epoch_;
  next->planner = planner_;
  if (planner_->next_block(next->block)) return next;
  planner_ = nullptr;
  ++planned_epoch_;
  return nullptr;
}

std::optional<MicroBatch> EpochCursor::next() {
  if (over_) return std::nullopt;
  while (!block_ || next_ >= block_->block.plan.micro_batches_per_rank()) {
    block_ = planned_.valid() ? planned_.get() : plan_next();
    if (!block_) {
      over_ = !follow_;
      return MicroBatch{.block = nullptr, .epoch = epoch_++, .index = 0, .step = 0};
    }
    next_ = block_->block.start.done;
  }
  // Half a block early is soon enough, and spares jobs that end within their first one.
  if (!planned_.valid() && next_ >= block_->block.plan.micro_batches_per_rank() / 2) {
    planned_ = std::async(std::launch::async, [this] { return plan_next(); });
  }
  const std::uint64_t index = next_++;
  const auto accumulate = static_cast<std::uint64_t>(options_.accumulate);
  return MicroBatch{block_, epoch_, index, block_->block.start.steps_before + index / accumulate};
}

}  // namespace lockstep::data
