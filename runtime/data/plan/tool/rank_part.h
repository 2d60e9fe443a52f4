// Prints one rank's part of an epoch's plan, a JSON line for each step, as it is planned: for training programs in other
// languages, which read it through a pipe. It plans one block ahead of what the reader takes, so neither side holds an
// epoch's plan.
//
// The first line describes the plan: version, samples, ranks, rank, seed, epoch, step_tokens and step_stretch (also if
// they are the defaults), fingerprint. Then for each step:
//   step         its number in the epoch
//   tokens       of all ranks; a rank may have none of them
//   rank_tokens  of this rank
//   loss_tokens  of all ranks, those that count in the loss
//   batches      this rank's micro-batches: lists of samples, maybe empty
//   shortest     the step's shortest sample, if this rank has no micro-batch or an empty one
//   state        the position after the step: another process continues from it
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct RankPart {
  int rank = 0;
  std::string from = {};                        ///< the `state` of a step; empty: from the beginning
  std::vector<std::uint32_t> loss_tokens = {};  ///< of each sample; empty: its length
};

/// Calls `print` with whole lines. Throws UsageError if an option is wrong, and Error as EpochPlanner does.
void print_rank_part(const Lengths& lengths, const PlanOptions& options, const RankPart& part,
                     const std::function<void(std::string_view)>& print);

}  // namespace lockstep::data
