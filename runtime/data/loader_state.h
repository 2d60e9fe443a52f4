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

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/plan_state.h"

namespace lockstep::data {

struct LoaderState {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  PlanState plan;
  /// What had been learnt, where the loader learns: the steps to come are planned with it.
  struct Learned {
    Cost cost;
    std::vector<double> speeds;
  };
  std::optional<Learned> learnt = std::nullopt;
};

/// As JSON with a checksum, and back. state_from_text throws Error where the text is not a state of a loader,
/// or its checksum does not match.
std::string to_text(const LoaderState& state);
LoaderState state_from_text(std::string_view text);

/// What tells such texts from each other in a few words: "epoch 3 after 17 steps (4f1c…)". Empty for an empty
/// text.
std::string in_short(std::string_view text);

}  // namespace lockstep::data
