// Finds the size of steps that the ranks can share evenly: plans an epoch with several sizes and compares how much time
// the ranks lose by waiting for the slowest one.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

struct StepSize {
  int accumulate = 1;
  std::uint64_t step_tokens = 0;  ///< as in PlanOptions
  double imbalance_cost = 1;      ///< maximum ÷ mean of the ranks' cost, mean over steps
  std::size_t steps = 0;          ///< of an epoch
};

struct Suggestion {
  std::vector<StepSize> rows;  ///< smallest steps first
  /// The row with the smallest steps that lose at most 2 %; the row that loses least if none does.
  std::size_t recommended = 0;

  const StepSize& best() const { return rows[recommended]; }
};

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(StepSize, accumulate, step_tokens, imbalance_cost, steps)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Suggestion, rows, recommended)

/// Plans with accumulate 1, 2, 4 and 8, each with its default budget of tokens and with three quarters of it; the other
/// options are those of `options`. Of long lists it plans an evenly spaced part. Throws as make_plan().
Suggestion suggest(std::span<const std::uint32_t> lengths, const PlanOptions& options);

/// A line that recommends another size of steps if a plan with these options loses more than 5 %; nothing otherwise.
std::optional<std::string> advice_on_step_size(std::span<const std::uint32_t> lengths,
                                               const PlanOptions& options);

}  // namespace lockstep::data
