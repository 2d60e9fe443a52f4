// Where an epoch stands: enough to go on with it in another process, also with another number of ranks, at
// the cost of planning one block again. It names the samples that were carried into the block and, by a bit
// each, those of it that have been used, so that it does not depend on how steps are composed.
//
// Threads: values; safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// Where a mixture (mixture.h) stands when a block begins.
struct MixtureState {
  /// Samples of each data set that were drawn: as many times through it as it has them, and so far into the
  /// next.
  std::vector<std::uint64_t> drawn;
  /// Tokens by which each is behind its weight.
  std::vector<double> owed;
  /// The range in which this block was drawn, and of how many samples; nothing where it is yet to be.
  std::size_t range = 0;
  std::optional<std::uint64_t> block_samples;
};

struct PlanState {
  /// Of the data, and of the order of this epoch: must be the same to go on.
  std::string data;
  std::string order;
  /// What the steps were planned for (ranks, accumulate, cap, cost, speeds, ...): may be another from here
  /// on.
  PlanOptions geometry;
  /// The block that is being used.
  std::size_t block = 0;
  /// Samples from earlier blocks that come before the block's own.
  std::vector<SampleId> carried;
  /// A bit for each of the carried and then of the block's samples: used before this geometry began to be
  /// used in this block. Empty: none.
  std::vector<bool> gone;
  /// Micro-batches of each rank that have been used since then.
  std::uint64_t done = 0;
  /// The bits of `gone`, and those of what has been used since. Empty: none.
  std::vector<bool> used;
  /// What was left of the randomness budget when this block began.
  double saved = 0;
  /// Optimizer steps of this epoch before `done` began to count.
  std::uint64_t steps_before = 0;
  /// Of a mixture.
  std::optional<MixtureState> mixture;
};

/// A JSON object; from_json throws Error saying what is missing or wrong.
void to_json(nlohmann::json& json, const PlanState& state);
void from_json(const nlohmann::json& json, PlanState& state);

/// Whether two options give the same steps from the same state.
bool same_geometry(const PlanOptions& x, const PlanOptions& y);

/// From where `state` goes on with these options. With the same geometry the block is planned again, from a
/// start for which `used_again` says what it has used after state.done (nothing: it cannot). Where that is
/// not what the state says (another version of this library planned it), and with another geometry, what is
/// left of the block is planned anew.
PlanState start_behind(
    const PlanState& state, const PlanOptions& options,
    const std::function<std::optional<std::vector<bool>>(const PlanState& start)>& used_again);

}  // namespace lockstep::data
