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
#include <vector>

#include "runtime/data/plan/blockwise_planner.h"

namespace lockstep::data {

/// A block of an epoch, and the planner that made it.
struct EpochBlock {
  std::uint64_t epoch = 0;
  PlannedBlock block;
  std::shared_ptr<const BlockwisePlanner> planner;

  /// The micro-batch with which the costs of the next block are decided; one that is handed out.
  std::uint64_t decides_at() const {
    const std::uint64_t first = block.start.done;
    return first + (block.plan.micro_batches_per_rank() - first) / 2;
  }
};

/// A micro-batch of every rank, or the end of an epoch.
struct MicroBatch {
  std::shared_ptr<const EpochBlock> block;  ///< null: the epoch is over
  std::uint64_t epoch = 0;
  std::uint64_t index = 0;  ///< in the block
  std::uint64_t step = 0;   ///< of the epoch
};

struct CursorOptions {
  PlanOptions plan;
  bool follow = true;  ///< one epoch by the next; otherwise next() has nothing after an epoch
  bool told = false;   ///< blocks behind the first wait for plan_on()
};

class EpochCursor {
 public:
  /// Makes the planner of an epoch with these options.
  using MakePlanner = std::function<std::shared_ptr<BlockwisePlanner>(const PlanOptions&)>;

  EpochCursor(MakePlanner make, const CursorOptions& options)
      : make_(std::move(make)), options_(options.plan), follow_(options.follow), told_(options.told) {}
  /// Waits for the planning that is under way.
  ~EpochCursor();

  /// Begins this epoch; with a `planner`, where that stands in it. Where the cursor is `told`, that plans its
  /// first block as it was made, and those behind with what plan_on() or set() said last.
  void move_to(std::uint64_t epoch, std::shared_ptr<BlockwisePlanner> planner);

  /// The next micro-batch or end of epoch. Throws what planning throws. Nothing once it was cancelled.
  std::optional<MicroBatch> next();

  /// Plans what comes behind the current block with this cost and these speeds. Once in each block of which
  /// micro-batches were handed out, where the cursor is `told`.
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
  bool follow_;
  bool told_;

  std::mutex mutex_;  // of all below
  std::condition_variable may_plan_;
  bool cancelled_ = false;

  // Of the block to be planned next; a null block ends an epoch.
  std::uint64_t planned_epoch_ = 0;
  std::shared_ptr<BlockwisePlanner> planner_;
  bool changed_ = false;  // the planner has not been told of the cost yet
  bool given_ = false;    // it was made elsewhere, maybe with another cost, and has planned nothing yet
  std::future<Block> planned_;

  // Of the block that is followed.
  std::uint64_t epoch_ = 0;
  bool over_ = false;
  Block block_;
  std::uint64_t next_ = 0;
};

}  // namespace lockstep::data
