// What a loader is made of, from its options: which samples it plans, who builds its batches, who plans.
//
// Threads: safe from any.
#pragma once

#include <memory>
#include <vector>

#include "runtime/data/batch/host_batch.h"
#include "runtime/data/epoch_cursor.h"
#include "runtime/data/lengths.h"
#include "runtime/data/loader_agreement.h"
#include "runtime/data/loader_options.h"
#include "runtime/data/ordered_prefetch.h"
#include "runtime/data/plan/order/length_source.h"
#include "staging/pack/reader.h"

namespace lockstep::data {

/// Throws UsageError naming the option that is wrong, or does not go with another.
void check_loader_options(const PlanOptions& plan, int rank, const LoaderOptions& options);

/// Bytes that a batch takes, at most.
std::size_t batch_bytes(const PlanOptions& plan, const LoaderOptions& options);

PrefetchOptions prefetch_options(const LoaderOptions& options, std::size_t batch_bytes);

/// Of each sample; an image counts as one token. Throws Error naming a sample that the plan would refuse.
Lengths planned_lengths(const pack::Reader& reader, const PlanOptions& plan, const LoaderOptions& options);

/// What the plan depends on, to be the same on all ranks.
std::vector<Agreed> planned_from(const Lengths& lengths, const PlanOptions& plan,
                                 const LoaderOptions& options);

/// `reader` and `lengths` must outlive the builder.
std::unique_ptr<HostBatchBuilder> make_builder(const pack::Reader& reader, const Lengths& lengths,
                                               const PlanOptions& plan, int rank, int workers,
                                               const LoaderOptions& options);

/// Plans an epoch, or the mixture; from `state` on where there is one.
std::shared_ptr<BlockwisePlanner> make_planner(const LengthSource& source, const PlanOptions& plan,
                                               const LoaderOptions& options,
                                               const PlanState* state = nullptr);

}  // namespace lockstep::data
