#include "runtime/data/epoch_cursor.h"

#include <utility>

#include "common/background_cpus.h"

namespace lockstep::data {

void EpochCursor::move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner) {
  const std::lock_guard lock(mutex_);
  if (planned_.valid()) planned_.wait();
  planned_ = {};
  planned_epoch_ = epoch_ = epoch;
  planner_ = std::move(planner);
  changed_ = false;
  planner_is_given_ = waits_for_costs_ && planner_;
  block_ = nullptr;
  ended_ = false;
  cancelled_ = false;
}

// Waits for the planning in progress, because it reads the options without the lock.
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

// Runs one call at a time: under the lock, or in the thread of planned_.
EpochCursor::Block EpochCursor::plan_next() {
  if (!planner_) {
    PlanOptions options = options_;
    options.epoch = planned_epoch_;
    planner_ = make_(options);
  } else if (changed_) {
    planner_->change(options_.cost, options_.speeds);
  }
  changed_ = std::exchange(planner_is_given_, false);
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

void EpochCursor::plan_on(const Cost& cost, const std::vector<double>& speeds) {
  {
    const std::lock_guard lock(mutex_);
    if (planned_.valid()) planned_.wait();
    options_.cost = cost;
    options_.speeds = speeds;
    changed_ = true;
    if (!ended_ && !planned_.valid()) planned_ = plan_in_background();
  }
  may_plan_.notify_all();
}

// Waits until plan_on() has begun to plan the next block. Returns false if cancelled.
bool EpochCursor::wait_for_next(std::unique_lock<std::mutex>& lock) {
  if (!waits_for_costs_ || !block_) return true;
  may_plan_.wait(lock, [this] { return planned_.valid() || cancelled_; });
  return planned_.valid();
}

std::optional<MicroBatch> EpochCursor::next() {
  std::unique_lock lock(mutex_);
  if (ended_) return std::nullopt;
  while (!block_ || step_ >= block_->block.plan.steps()) {
    if (!wait_for_next(lock)) return std::nullopt;
    block_ = planned_.valid() ? planned_.get() : plan_next();
    if (!block_) {
      ended_ = !follow_;
      return MicroBatch{.epoch = epoch_++};
    }
    step_ = 0;
    index_ = 0;
  }
  const Plan& plan = block_->block.plan;
  // Half a block ahead is early enough, and jobs that end in the first half of a block save the planning.
  if (!waits_for_costs_ && !planned_.valid() && step_ >= plan.steps() / 2) {
    planned_ = plan_in_background();
  }
  const MicroBatch next{.block = block_,
                        .epoch = epoch_,
                        .step = step_,
                        .index = index_++,
                        .count = plan.micro_batches(step_, rank_)};
  if (next.last_of_step()) {
    ++step_;
    index_ = 0;
  }
  return next;
}

}  // namespace lockstep::data
