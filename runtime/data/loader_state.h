// The position of a loader in an epoch, as text. A job that was killed continues from it, on any number of
// ranks.
//
// Threads: values; functions are safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

struct LoaderState {
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  PlanState plan;
};

/// Converts a state to JSON with a checksum, and back. state_from_text throws Error if the text is not a
/// loader's state or the checksum does not match.
std::string to_text(const LoaderState& state);
LoaderState state_from_text(std::string_view text);

/// A short text that differs between different states: "epoch 3 after 17 steps (4f1c…)". "none" for an empty
/// text.
std::string summary_of(std::string_view text);

}  // namespace lockstep::data
