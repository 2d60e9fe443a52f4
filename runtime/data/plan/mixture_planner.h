// Plans a mixture (mixture.h) block by block. A block's samples are drawn one after the other, each from the
// part that is furthest behind its weight, so that every step has nearly the shares that the weights say. A
// block never reaches over the end of a range. What is left of it goes back to its part and is drawn first
// when that part's turn comes: however much is left (a range that ends on fewer ranks than it began with uses
// less of its last block), it keeps no range from its weights. The pieces of a sample that is split are drawn
// one by one, each when its part's turn comes.
//
//   MixturePlanner planner(lengths, options, mixture);
//   for (PlannedBlock block; planner.next_block(block);) ...
//
// Needs memory for a block, and for one of each part.
//
// Threads: a MixturePlanner belongs to one thread at a time; state_after() may be called from another beside
// it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/plan/block_planner.h"
#include "runtime/data/plan/blockwise_planner.h"
#include "runtime/data/plan/item.h"
#include "runtime/data/plan/length_source.h"
#include "runtime/data/plan/mixture.h"
#include "runtime/data/plan/part_stream.h"

namespace lockstep::data {

class MixturePlanner final : public BlockwisePlanner {
 public:
  /// `source` holds the parts one behind the other, and must outlive the planner. `options.epoch` is not
  /// looked at: parts count their own. Throws UsageError when an option or the mixture is wrong.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture);

  /// Goes on from a state, as EpochPlanner does.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                 const PlanState& state);

  /// False when the mixture's steps are done. Throws Error where a sample is empty or (unless the options say
  /// otherwise) longer than the cap, naming it.
  bool next_block(PlannedBlock& block) override;
  PlanState state_after(const PlannedBlock& block, std::uint64_t micro_batches) const override;
  void change(const Cost& cost, const std::vector<double>& speeds) override;
  const PlanState& next_start() const override { return start_; }
  std::uint64_t ends_at() const override { return mixture_.steps; }
  void go_to(const PlanState& start) override {
    start_ = start;
    options_.longest = start.geometry.longest;
  }

 private:
  struct Drawn {
    std::vector<SampleId> ids;
    std::vector<std::uint32_t> lengths;
    std::vector<SampleId> aside;  // of those carried, the ones whose turn has not come
    MixtureState behind;          // the state after drawing
  };
  Drawn draw(const PlanState& start, std::uint64_t most_samples, std::uint64_t enough_tokens) const;
  void give_back(Drawn& drawn, std::vector<Item> left);
  std::uint32_t checked_length(const PartStream::Sample& sample, std::uint64_t longest) const;
  std::uint64_t steps_left() const;
  std::size_t part_of(SampleId id) const;
  std::vector<double> shares_of(std::size_t range) const;

  const LengthSource& source_;
  PlanOptions options_;
  Mixture mixture_;
  std::unique_ptr<BlockPlanner> planner_;
  PlanState start_;  // of the next block
};

}  // namespace lockstep::data
