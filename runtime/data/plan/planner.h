// The planner turns the lengths of an epoch's samples into optimizer steps:
//
//   lengths           ../lengths.h           CSV, histogram, packs; or any LengthSource
//   (order/length_source.h)
//      |
//   shuffled order    order/order.h         by seed and epoch; block after block (order/block_reader.h)
//      |
//   steps             steps/step_packer.h   samples in that order until the step's token budget is full; a
//   step in
//      |                                    which one sample outweighs a rank's share may take more
//   ranks             steps/rank_balancer.h equal cost a*L + b*L*L, divided by the ranks' speeds
//      |
//   micro-batches     steps/micro_batches.h each rank's share under the cap, as few as first-fit finds
//      |              steps/padded_cut.h    (padded: neighbours in length, cut first and dealt to the ranks
//      after)
//   Plan              plan.h                block by block from epoch_planner.h or mixture/mixture_planner.h
//
// Ranks of a step wait for the slowest, so unequal cost is time lost on all the others; token counts miss the
// quadratic part. Ranks meet once a step, so they need not have equally many micro-batches. A step is a run
// of neighbours in the shuffled order: a random draw by construction, and where an epoch stands is one
// position in that order (plan_state.h). Every sample appears exactly once. No communication: the same
// lengths and options give the same plan in every process.
//
// Threads: make_plan() and fingerprint_of() are safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/plan.h"

namespace lockstep::data {

/// Samples that are longer than the cap.
struct OverLong {
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;  ///< of theirs that the plan leaves out
  SampleId first = 0;        ///< number of the first one

  void add(const OverLong& more) {
    if (samples == 0) first = more.first;
    samples += more.samples;
    tokens += more.tokens;
  }
};

/// Plans one epoch of samples with these lengths in tokens. `fingerprint` names the data; where it is empty
/// the lengths' own is taken (fingerprint_of). Throws UsageError when an option is wrong, and Error when a
/// sample is empty or longer than the cap, naming the sample (unless the options say what to do with it:
/// `over_long` then counts them).
Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
               std::string fingerprint = {}, OverLong* over_long = nullptr);

/// A hash of lengths and order.
std::string fingerprint_of(std::span<const std::uint32_t> lengths);

}  // namespace lockstep::data
