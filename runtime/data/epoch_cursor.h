// Which micro-batch comes next: follows an epoch's plan, block after block, from any point of it, and then
// the next epoch's. The block that comes next is planned in the background, so that neither a block nor an
// epoch begins with a wait.
//
// Threads: one call at a time, from any thread.
#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <optional>

#include "runtime/data/epoch_planner.h"
#include "runtime/data/length_source.h"

namespace lockstep::data {

/// A block of an epoch, and the planner that made it.
struct EpochBlock {
  std::uint64_t epoch = 0;
  PlannedBlock block;
  std::shared_ptr<const EpochPlanner> planner;
};

/// A micro-batch of every rank, or the end of an epoch.
struct MicroBatch {
  std::shared_ptr<const EpochBlock> block;  ///< null: the epoch is over
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;  ///< in the block
  std::uint64_t step = 0;   ///< of the epoch
};

class EpochCursor {
 public:
  /// `lengths` must outlive the cursor. Where epochs do not `follow`, next() has nothing after an epoch.
  EpochCursor(const LengthSource& lengths, const PlanOptions& options, bool follow)
      : lengths_(lengths), options_(options), follow_(follow) {}

  /// Begins this epoch; with a `planner`, where that stands in it.
  void move_to(std::uint64_t epoch, std::shared_ptr<EpochPlanner> planner);

  /// The next micro-batch or end of epoch. Throws what planning throws.
  std::optional<MicroBatch> next();

 private:
  using Block = std::shared_ptr<const EpochBlock>;
  Block plan_next();

  const LengthSource& lengths_;
  PlanOptions options_;
  bool follow_;

  // Of the block to be planned next; a null block ends an epoch.
  std::uint64_t planned_epoch_ = 0;
  std::shared_ptr<EpochPlanner> planner_;
  std::future<Block> planned_;

  // Of the block that is followed.
  std::uint64_t epoch_ = 0;
  bool over_ = false;
  Block block_;
  std::uint64_t next_ = 0;
};

}  // namespace lockstep::data
