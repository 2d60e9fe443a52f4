// Which micro-batch comes next: follows an epoch's plan, block after block, from any point of it, and then
// the next epoch's. The block that comes next is planned in the background, so that neither a block nor an
// epoch begins with a wait. Where costs are learnt, it is planned when the cursor is told with which.
//
// Threads: next() and move_to() one call at a time, from any thread; plan_on() and cancel() from another
// beside them.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"

namespace lockstep::data {

/// A block of an epoch.
struct EpochBlock {
  std::uint64_t epoch = 0;
  PlannedBlock block;

  /// The step, of the block, with whose first micro-batch the costs of the next block are decided.
  std::size_t decides_at() const { return block.plan.steps() / 2; }
};

/// A micro-batch of this rank, or the end of an epoch.
struct MicroBatch {
  std::shared_ptr<const EpochBlock> block = nullptr;  ///< null: the epoch is over
  std::uint64_t epoch = 0;
  std::size_t step = 0;   ///< of the block
  std::size_t index = 0;  ///< of this rank's micro-batches in the step
  std::size_t count = 0;  ///< of those; 0: the rank has none in this step, and this stands for the step

  bool last_of_step() const { return index + 1 >= count; }
  /// From the epoch's first step on.
  std::uint64_t step_of_epoch() const { return block->block.start.steps + step; }
  /// Of this rank.
  std::span<const SampleId> samples(int rank) const {
    return count == 0 ? std::span<const SampleId>() : block->block.plan.micro_batch(step, rank, index);
  }
};

struct CursorOptions {
  PlanOptions plan;
  int rank = 0;
  bool follow = true;            ///< each epoch by the next; otherwise next() has nothing after an epoch
  bool waits_for_costs = false;  ///< blocks after the first wait for plan_on()
};

class EpochCursor {
 public:
  /// Makes the planner of an epoch with these options.
  using MakePlanner = std::function<std::shared_ptr<BlockwisePlanner>(const PlanOptions&)>;

  EpochCursor(MakePlanner make, const CursorOptions& options)
      : make_(std::move(make)),
        options_(options.plan),
        rank_(options.rank),
        follow_(options.follow),
        waits_for_costs_(options.waits_for_costs) {}
  /// Waits for the planning that is under way.
  ~EpochCursor();

  /// Begins this epoch; with a `planner`, where that stands in it. Where the cursor `waits_for_costs`, that
  /// plans its first block as it was made, and those after it with what plan_on() or set() said last.
  void move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner);

  /// The next micro-batch or end of epoch. Throws what planning throws. Nothing once it was cancelled.
  std::optional<MicroBatch> next();

  /// Plans what comes after the current block with this cost and these speeds. Once in each block, where the
  /// cursor `waits_for_costs`.
  void plan_on(const Cost& cost, const std::vector<double>& speeds);

  /// The cost and speeds of the planners to come. Waits for the planning that is under way.
  void set(const Cost& cost, const std::vector<double>& speeds);

  /// Ends a wait for plan_on() until move_to().
  void cancel();

 private:
  using Block = std::shared_ptr<const EpochBlock>;
  Block plan_next();
  bool wait_for_next(std::unique_lock<std::mutex>& lock);

  const MakePlanner make_;
  PlanOptions options_;
  int rank_;
  bool follow_;
  bool waits_for_costs_;

  std::mutex mutex_;  // of all below
  std::condition_variable may_plan_;
  bool cancelled_ = false;

  // Of the block to be planned next; a null block ends an epoch.
  std::uint64_t planned_epoch_ = 0;
  std::shared_ptr<BlockwisePlanner> planner_;
  bool changed_ = false;  // the planner has not been told of the cost yet
  bool made_elsewhere_ =
      false;  // it was made elsewhere, maybe with another cost, and has planned nothing yet
  std::future<Block> planned_;

  // Of the block that is followed.
  std::uint64_t epoch_ = 0;
  bool over_ = false;
  Block block_;
  std::size_t step_ = 0;   // the next micro-batch's, of the block
  std::size_t index_ = 0;  // of the next micro-batch in its step
};

}  // namespace lockstep::data
