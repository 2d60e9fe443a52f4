// The parts of a loader, made from its options (the lengths, the builder of its batches, and the planner), and its position as
// text.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/ordered_prefetch.h"
#include "runtime/comm/alike.h"
#include "runtime/data/batch/host_batch.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/plan/planner.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// Throws UsageError naming an option that is wrong or contradicts another.
void check_loader_options(const PlanOptions& plan, int rank, const LoaderOptions& options);

/// The maximum size of a batch in bytes.
std::size_t batch_bytes(const PlanOptions& plan, const LoaderOptions& options);

PrefetchOptions prefetch_options(const LoaderOptions& options, std::size_t batch_bytes);

/// The length of each sample; an image counts as one token. Throws Error naming a sample that the plan
/// would refuse.
Lengths planned_lengths(const pack::Reader& reader, const PlanOptions& plan, const LoaderOptions& options);

/// The values that determine the plan. They must be the same on all ranks.
std::vector<comm::Property> plan_inputs(const Lengths& lengths, const PlanOptions& plan,
                                        const LoaderOptions& options);

/// `reader` and `lengths` must outlive the builder.
std::unique_ptr<HostBatchBuilder> make_builder(const pack::Reader& reader, const Lengths& lengths,
                                               const PlanOptions& plan, int rank, int workers,
                                               const LoaderOptions& options);

/// Makes the planner of an epoch or of the mixture. It continues from `state` if there is one.
std::shared_ptr<BlockwisePlanner> make_planner(const LengthSource& source, const PlanOptions& plan,
                                               const LoaderOptions& options,
                                               const PlanState* state = nullptr);

/// The position in an epoch. A job that was killed continues from it, on any number of ranks.
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
