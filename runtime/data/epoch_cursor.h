// Gives the micro-batches of a rank one after the other. It follows an epoch's plan block by block, from
// any position, and then the plan of the next epoch. It plans the next block in the background, so that
// neither a block nor an epoch begins with a wait.
//
// Threads: any thread, one call at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// A planned block and its epoch.
struct EpochBlock {
  std::uint64_t epoch = 0;
  PlannedBlock block;
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
  bool follow = true;  ///< continue with the next epoch; otherwise next() ends after an epoch
};

class EpochCursor {
 public:
  /// Makes the planner of an epoch with these options.
  using MakePlanner = std::function<std::shared_ptr<BlockwisePlanner>(const PlanOptions&)>;

  EpochCursor(MakePlanner make, CursorOptions options)
      : make_(std::move(make)), options_(std::move(options)) {}

  /// Moves to the beginning of the epoch, or to the position of `planner` in it.
  void move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner);

  /// Returns the next micro-batch or the end of an epoch; nullopt after that if the cursor does not follow.
  /// Throws the errors of planning.
  std::optional<MicroBatch> next();

 private:
  using Block = std::shared_ptr<const EpochBlock>;
  Block plan_next();
  std::future<Block> plan_in_background();

  const MakePlanner make_;
  const CursorOptions options_;

  // The block to plan next. A null block ends an epoch.
  std::uint64_t planned_epoch_ = 0;
  std::shared_ptr<BlockwisePlanner> planner_;
  std::future<Block> planned_;  // its end waits for the planning in progress

  // The current block.
  std::uint64_t epoch_ = 0;
  bool ended_ = false;
  Block block_;
  std::size_t step_ = 0;   // of the next micro-batch, in the block
  std::size_t index_ = 0;  // of the next micro-batch, in its step
};

}  // namespace lockstep::data
