// The position of an epoch or a mixture between two optimizer steps: enough to continue it in another
// process, also with another number of ranks. A step takes consecutive samples of the epoch's order, so one
// position in that order tells which samples are used, for any number of ranks. Steps whose tokens are a
// promise also take a few samples after that position.
//
// Threads: values; safe from any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data {

/// The position of a mixture (mixture/mixture.h). The first three members have one entry for each data set.
struct MixturePosition {
  std::vector<std::uint64_t> drawn;   ///< samples drawn so far, in all epochs
  std::vector<std::uint64_t> piece;   ///< next piece of the last of these samples; 0: it is complete
  std::vector<std::uint64_t> tokens;  ///< tokens drawn in the mixture's current range
  /// SampleIds of drawn samples that are in no step yet, because a step took later ones that fit. One list for all data
  /// sets, in the order in which they were drawn.
  std::vector<std::uint64_t> waiting = {};

  bool operator==(const MixturePosition&) const = default;
};

/// The next sample in the order: item `used` of an epoch's block, or a position in each data set of a
/// mixture.
struct PlanPosition {
  std::uint64_t block = 0;
  std::uint64_t used = 0;
  /// Samples after the next one that are used already: how many places after it. Only in an epoch.
  std::vector<std::uint64_t> ahead = {};
  std::optional<MixturePosition> mixture = std::nullopt;

  bool operator==(const PlanPosition&) const = default;
};

struct PlanState {
  /// Fingerprints of the data and of the order of samples. A planner continues only with the same data and
  /// order.
  std::string data;
  std::string order;
  /// Optimizer steps so far.
  std::uint64_t steps = 0;
  PlanPosition position;

  bool operator==(const PlanState&) const = default;
};

/// As a JSON object. from_json throws Error naming the member that is missing or wrong.
void to_json(nlohmann::json& json, const PlanState& state);
void from_json(const nlohmann::json& json, PlanState& state);

}  // namespace lockstep::data
