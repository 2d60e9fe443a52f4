#include "runtime/data/plan/epoch_cursor.h"

#include <utility>

namespace lockstep::data {

EpochCursor::~EpochCursor() {
  if (planned_.valid()) planned_.wait();
}

void EpochCursor::move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner) {
  const std::lock_guard lock(mutex_);
  if (planned_.valid()) planned_.wait();
  planned_ = {};
  planned_epoch_ = epoch_ = epoch;
  planner_ = std::move(planner);
  changed_ = false;
  given_ = told_ && planner_;
  block_ = nullptr;
  over_ = false;
  cancelled_ = false;
}

// Planning reads the options without the lock, so it ends before they change.
void EpochCursor::set(const Cost& cost, const std::vector<double>& speeds) {
  const std::lock_guard lock(mutex_);
  if (planned_.valid()) planned_.wait();
  options_.cost = cost;
  options_.speeds = speeds;
}

void EpochCursor::cancel() {
  {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
  }
  may_plan_.notify_all();
}

// One call at a time, each behind the one before: under the lock, or in the future that planned_ is.
EpochCursor::Block EpochCursor::plan_next() {
  if (!planner_) {
    PlanOptions options = options_;
    options.epoch = planned_epoch_;
    planner_ = make_(options);
  } else if (changed_) {
    planner_->change(options_.cost, options_.speeds);
  }
  changed_ = std::exchange(given_, false);
  auto next = std::make_shared<EpochBlock>();
  next->epoch = planned_epoch_;
  next->planner = planner_;
  if (planner_->next_block(next->block)) return next;
  planner_ = nullptr;
  ++planned_epoch_;
  return nullptr;
}

void EpochCursor::plan_on(const Cost& cost, const std::vector<double>& speeds) {
  {
    const std::lock_guard lock(mutex_);
    if (planned_.valid()) planned_.wait();
    options_.cost = cost;
    options_.speeds = speeds;
    changed_ = true;
    if (!over_ && !planned_.valid())
      planned_ = std::async(std::launch::async, [this] { return plan_next(); });
  }
  may_plan_.notify_all();
}

// Until the block that comes next is planned or may be. False: cancelled.
bool EpochCursor::wait_for_next(std::unique_lock<std::mutex>& lock) {
  // A block of which nothing is handed out gives nobody an occasion to tell.
  const bool tells =
      told_ && block_ && block_->block.start.done < block_->block.plan.micro_batches_per_rank();
  if (!tells) return true;
  may_plan_.wait(lock, [this] { return planned_.valid() || cancelled_; });
  return planned_.valid();
}

std::optional<MicroBatch> EpochCursor::next() {
  std::unique_lock lock(mutex_);
  if (over_) return std::nullopt;
  while (!block_ || next_ >= block_->block.plan.micro_batches_per_rank()) {
    if (!wait_for_next(lock)) return std::nullopt;
    block_ = planned_.valid() ? planned_.get() : plan_next();
    if (!block_) {
      over_ = !follow_;
      return MicroBatch{.block = nullptr, .epoch = epoch_++, .index = 0, .step = 0};
    }
    next_ = block_->block.start.done;
  }
  // Half a block early is soon enough, and spares jobs that end within their first one.
  if (!told_ && !planned_.valid() && next_ >= block_->block.plan.micro_batches_per_rank() / 2) {
    planned_ = std::async(std::launch::async, [this] { return plan_next(); });
  }
  const std::uint64_t index = next_++;
  const auto accumulate = static_cast<std::uint64_t>(options_.accumulate);
  return MicroBatch{block_, epoch_, index, block_->block.start.steps_before + index / accumulate};
}

}  // namespace lockstep::data
