// A plan: which samples each rank trains on, step by step and micro-batch by micro-batch.
//
// Threads: a Plan is a value; const members are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/plan/options.h"
#include "runtime/data/plan/sample_id.h"
#include "runtime/data/plan/steps/item.h"

namespace lockstep::data {

struct PlannedMixture;  // mixture/mixture.h

/// Steps x ranks x micro-batches x samples. Ranks may have different numbers of micro-batches in a step, also
/// none.
class Plan {
 public:
  Plan() = default;
  /// `samples`: of the data set that is planned. `fingerprint`: of the data and their order; a plan is only
  /// good for the data it was made for.
  Plan(PlanOptions options, std::size_t samples, std::string fingerprint);

  const PlanOptions& options() const { return options_; }
  std::size_t samples() const { return samples_; }
  const std::string& fingerprint() const { return fingerprint_; }

  /// Optimizer steps.
  std::size_t steps() const { return rank_ends_.size() / ranks(); }
  /// Micro-batches of a rank in a step.
  std::size_t micro_batches(std::size_t step, int rank) const {
    const std::size_t at = place(step, rank);
    return rank_ends_[at] - before(rank_ends_, at);
  }
  /// Of all ranks and steps.
  std::size_t micro_batches() const { return batch_ends_.size(); }
  /// The samples of one micro-batch; `micro_batch` must be below micro_batches(step, rank).
  std::span<const SampleId> micro_batch(std::size_t step, int rank, std::size_t micro_batch) const;
  /// The samples of all ranks in a step, rank by rank.
  std::span<const SampleId> step_samples(std::size_t step) const;
  /// All samples, step by step.
  std::span<const SampleId> sample_ids() const { return ids_; }

  /// A hash of the steps: where it is the same, ranks do the same.
  std::string steps_fingerprint() const;

  /// Adds a step: a list of micro-batches for each rank.
  void append_step(const std::vector<std::vector<std::vector<SampleId>>>& ranks);

  /// Adds a step whose indices `id_of` turns into samples.
  template <typename IdOf>
  void append_step(const StepView& step, IdOf&& id_of) {
    const std::size_t begin = ids_.size();
    const std::size_t first_batch = batch_ends_.size();
    ids_.resize(begin + step.indices.size());
    for (std::size_t i = 0; i < step.indices.size(); ++i) ids_[begin + i] = id_of(step.indices[i]);
    for (const std::uint32_t end : step.batch_ends) batch_ends_.push_back(begin + end);
    for (const std::uint32_t end : step.rank_ends) rank_ends_.push_back(first_batch + end);
  }

  /// Adds the steps of another plan for as many ranks.
  void append(const Plan& more);

  void reserve(std::size_t samples) { ids_.reserve(samples); }

  /// Of the plan of a whole mixture; null for an epoch, and for a block.
  const PlannedMixture* mixture() const { return mixture_.get(); }
  void set_mixture(std::shared_ptr<const PlannedMixture> mixture) { mixture_ = std::move(mixture); }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(options_.ranks); }
  std::size_t place(std::size_t step, int rank) const {
    return step * ranks() + static_cast<std::size_t>(rank);
  }
  static std::size_t before(const std::vector<std::size_t>& ends, std::size_t at) {
    return at == 0 ? 0 : ends[at - 1];
  }

  PlanOptions options_;
  std::size_t samples_ = 0;
  std::string fingerprint_;
  std::vector<SampleId> ids_;
  std::vector<std::size_t> batch_ends_;  // of each micro-batch, in ids_
  std::vector<std::size_t> rank_ends_;   // of each step and rank, in batch_ends_
  std::shared_ptr<const PlannedMixture> mixture_;
};

}  // namespace lockstep::data
