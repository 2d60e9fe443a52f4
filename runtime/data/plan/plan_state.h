// Where an epoch or a mixture stands, between two optimizer steps: enough to go on with it in another
// process, also with another number of ranks. A step is a run of neighbours in the epoch's order, so one
// position in that order says which samples have been used, whatever they were planned for.
//
// Threads: values; safe from any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::data {

/// Where a mixture (mixture/mixture.h) stands: for each of its data sets,
struct MixturePosition {
  std::vector<std::uint64_t> drawn;   ///< its samples drawn so far, in all its epochs
  std::vector<std::uint64_t> piece;   ///< the piece that comes next of the last of them; 0: it is complete
  std::vector<std::uint64_t> tokens;  ///< its tokens drawn in the mixture's current range

  bool operator==(const MixturePosition&) const = default;
};

/// The next sample in the order: of an epoch's block, so many items in.
struct PlanPosition {
  std::uint64_t block = 0;
  std::uint64_t used = 0;
  std::optional<MixturePosition> mixture = std::nullopt;

  bool operator==(const PlanPosition&) const = default;
};

struct PlanState {
  /// Of the data, and of the order of this epoch: must be the same to go on.
  std::string data;
  std::string order;
  /// Optimizer steps so far.
  std::uint64_t steps = 0;
  PlanPosition position;

  bool operator==(const PlanState&) const = default;
};

/// A JSON object; from_json throws Error saying what is missing or wrong.
void to_json(nlohmann::json& json, const PlanState& state);
void from_json(const nlohmann::json& json, PlanState& state);

}  // namespace lockstep::data
