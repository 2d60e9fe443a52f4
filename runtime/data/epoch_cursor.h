// Gives the micro-batches of a rank one after the other. It follows an epoch's plan block by block, from
// any position, and then the plan of the next epoch. It plans the next block in the background, so that
// neither a block nor an epoch begins with a wait. If costs are learnt, it begins to plan a block when
// plan_on() provides them.
//
// Threads: next() and move_to() from any thread, one call at a time; plan_on() and cancel() also from
// another thread at the same time.
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

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// A planned block and its epoch.
struct EpochBlock {
  std::uint64_t epoch = 0;
  PlannedBlock block;

  /// The step of this block in which the costs of the next block are decided, at its first micro-batch.
  std::size_t decides_at() const { return block.plan.steps() / 2; }
};

/// A micro-batch of this rank, or the end of an epoch.
struct MicroBatch {
  std::shared_ptr<const EpochBlock> block = nullptr;  ///< null: the epoch is over
  std::uint64_t epoch = 0;
  std::size_t step = 0;   ///< in the block
  std::size_t index = 0;  ///< among this rank's micro-batches in the step
  std::size_t count = 0;  ///< this rank's micro-batches in the step; 0: this value represents an empty step

  bool last_of_step() const { return index + 1 >= count; }
  /// The number of the step in its epoch.
  std::uint64_t step_of_epoch() const { return block->block.start.steps + step; }
  /// The samples of this rank.
  std::span<const SampleId> samples(int rank) const {
    return count == 0 ? std::span<const SampleId>() : block->block.plan.micro_batch(step, rank, index);
  }
};

struct CursorOptions {
  PlanOptions plan;
  int rank = 0;
  bool follow = true;            ///< continue with the next epoch; otherwise next() ends after an epoch
  bool waits_for_costs = false;  ///< plan blocks after the first one only after plan_on()
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
  /// Waits for the planning in progress.
  ~EpochCursor() {
    if (planned_.valid()) planned_.wait();
  }

  /// Moves to the beginning of the epoch, or to the position of `planner` in it. If the cursor
  /// `waits_for_costs`, a given planner plans its first block unchanged, and the following ones with the
  /// last values of plan_on() or set().
  void move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner);

  /// Returns the next micro-batch or the end of an epoch; nullopt after cancel(). Throws the errors of
  /// planning.
  std::optional<MicroBatch> next();

  /// Plans the blocks after the current one with this cost and these speeds. If the cursor
  /// `waits_for_costs`, call it once in each block.
  void plan_on(const Cost& cost, const std::vector<double>& speeds);

  /// Sets the cost and speeds of new planners. Waits for the planning in progress.
  void set(const Cost& cost, const std::vector<double>& speeds);

  /// Ends the wait for plan_on(), until the next move_to().
  void cancel();

 private:
  using Block = std::shared_ptr<const EpochBlock>;
  Block plan_next();
  std::future<Block> plan_in_background();
  bool wait_for_next(std::unique_lock<std::mutex>& lock);

  const MakePlanner make_;
  PlanOptions options_;
  int rank_;
  bool follow_;
  bool waits_for_costs_;

  std::mutex mutex_;  // protects all members below
  std::condition_variable may_plan_;
  bool cancelled_ = false;

  // The block to plan next. A null block ends an epoch.
  std::uint64_t planned_epoch_ = 0;
  std::shared_ptr<BlockwisePlanner> planner_;
  bool changed_ = false;           // the planner does not have the current cost yet
  bool planner_is_given_ = false;  // by move_to(), maybe with another cost, and it has planned no block yet
  std::future<Block> planned_;

  // The current block.
  std::uint64_t epoch_ = 0;
  bool ended_ = false;
  Block block_;
  std::size_t step_ = 0;   // of the next micro-batch, in the block
  std::size_t index_ = 0;  // of the next micro-batch, in its step
};

}  // namespace lockstep::data
