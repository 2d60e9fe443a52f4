// Where a loader is in an epoch, so that a job that was killed goes on there, on any number of ranks. What an
// epoch has used is said by how it was planned and how far that plan was followed; an epoch that was resumed
// on other ranks has several such parts, each planning what the ones before it left.
//
// Threads: values; functions are safe from any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/data/planner.h"

namespace lockstep::data {

/// Micro-batches of every rank that were taken from one plan.
struct EpochPart {
  PlanOptions options;
  std::uint64_t micro_batches = 0;
};

struct LoaderState {
  std::string data;  ///< fingerprint of the data and their order on disk
  Order order = Order::shuffled;
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  std::vector<EpochPart> parts;
};

/// Whether two sets of options plan the same samples alike: all that matters but the epoch.
bool same_geometry(const PlanOptions& x, const PlanOptions& y);

/// As JSON, and back. from_text throws Error where that is no state of a loader.
std::string to_text(const LoaderState& state);
LoaderState state_from_text(std::string_view text);

/// Plans what the parts leave of the epoch. The plan's numbers are those of the data set, whose size and
/// fingerprint it also has. A part whose geometry is `options`' must not be the last.
Plan plan_rest(std::span<const std::uint32_t> lengths, const std::string& fingerprint,
               const PlanOptions& options, std::span<const EpochPart> parts);

}  // namespace lockstep::data
