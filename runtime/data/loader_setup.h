// Makes the parts of a loader from its options: the lengths, the builder of its batches, and the planner.
//
// Threads: safe from any.
#pragma once

#include <memory>
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

}  // namespace lockstep::data
