// Where a loader is in an epoch, as text, so that a job that was killed goes on there, on any number of
// ranks.
//
// Threads: values; functions are safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/plan/plan_state.h"

namespace lockstep::data {

struct LoaderState {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  PlanState plan;
  /// What had been learnt, where the loader learns: the blocks behind this one are to be planned with it.
  struct Learned {
    Cost cost;
    std::vector<double> speeds;
  };
  std::optional<Learned> learnt = std::nullopt;
};

/// As JSON, and back. state_from_text throws Error where that is no state of a loader.
std::string to_text(const LoaderState& state);
LoaderState state_from_text(std::string_view text);

/// What tells such texts from each other in a few words: "epoch 3, block 0, 17 micro-batches into it
/// (4f1c…)". Of no text, none.
std::string in_short(std::string_view text);

}  // namespace lockstep::data
