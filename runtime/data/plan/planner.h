// The planner turns the lengths of an epoch's samples into optimizer steps:
//
//   lengths         ../lengths.h            a CSV file, histogram or pack; or any other LengthSource
//      |            order/length_source.h
//   order           order/order.h           shuffled by seed and epoch, block by block
//      |            order/block_reader.h
//   steps           steps/step_packer.h     consecutive samples that fill the step's token budget; more if
//      |                                    one sample costs more than a rank's share
//   ranks           steps/rank_balancer.h   equal cost a*L + b*L*L, divided by the ranks' speeds
//      |
//   micro-batches   steps/micro_batches.h   each rank's share, first fit under the cap
//      |            steps/padded_cut.h      if padded: samples of similar length, cut before they go to ranks
//   Plan            plan.h                  by epoch_planner.h or mixture/mixture_planner.h, block by block
//
// The ranks of a step wait for the slowest one, so unequal cost is lost time on all others; equal token
// counts would miss the quadratic part. Ranks meet once a step, so they may have different numbers of
// micro-batches. Since a step takes consecutive samples of the shuffled order, it is a random draw, and one
// position in that order describes how much of the epoch is used (plan_state.h; with step_tokens, a few samples after
// it are used too). Every sample appears
// exactly once. The planner does not communicate: the same lengths and options give the same plan in every
// process.
//
// Threads: make_plan() and fingerprint_of() are safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/plan.h"

namespace lockstep::data {

/// Plans one epoch of samples with these lengths in tokens. `fingerprint` identifies the data; if it is
/// empty, fingerprint_of(lengths) is used. Throws UsageError if an option is wrong, and Error naming a
/// sample that is empty or (if too_long is refuse) longer than the cap.
Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
               std::string fingerprint = {});

/// A hash of the lengths in their order.
std::string fingerprint_of(std::span<const std::uint32_t> lengths);

/// The shape of a micro-batch, to try before training whether it fits into memory (runtime/train/memory_warm_up.h).
struct MicroBatchShape {
  std::int64_t samples = 0;
  std::int64_t longest = 0;  ///< tokens of the longest sample; of each row, if padded
  std::int64_t tokens = 0;   ///< in all; with the padding, if padded: samples x longest
};

/// The micro-batch of any rank with the highest cost by the plan's Cost. `lengths` are those that the plan was made of.
/// All zero for a plan without steps.
MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths);

}  // namespace lockstep::data
