// A plan lists the samples of each rank, step by step and micro-batch by micro-batch.
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

namespace lockstep::data {

struct PlannedMixture;  // mixture/mixture.h

/// Steps x ranks x micro-batches x samples. The ranks of a step may have different numbers of micro-batches,
/// also none.
class Plan {
 public:
  Plan() = default;
  /// `samples` is the number of samples of the data set. `fingerprint` identifies the data and their order: a
  /// plan is valid for these data only.
  Plan(PlanOptions options, std::size_t samples, std::string fingerprint);

  const PlanOptions& options() const { return options_; }
  std::size_t samples() const { return samples_; }
  const std::string& fingerprint() const { return fingerprint_; }

  /// The number of optimizer steps.
  std::size_t steps() const { return rank_ends_.size() / ranks(); }
  /// The number of micro-batches of a rank in a step.
  std::size_t micro_batches(std::size_t step, int rank) const {
    const std::size_t at = index_of(step, rank);
    return rank_ends_[at] - begin_of(rank_ends_, at);
  }
  /// The samples of one micro-batch; `micro_batch` must be below micro_batches(step, rank).
  std::span<const SampleId> micro_batch(std::size_t step, int rank, std::size_t micro_batch) const;
  /// The samples of all ranks in a step, rank by rank.
  std::span<const SampleId> step_samples(std::size_t step) const;
  /// All samples, step by step.
  std::span<const SampleId> sample_ids() const { return ids_; }

  /// A hash of the steps, to compare the plans of two ranks.
  std::string steps_fingerprint() const;

  /// Adds a step that has a list of micro-batches for each rank.
  void append_step(const std::vector<std::vector<std::vector<SampleId>>>& ranks);

  /// Adds a step (steps/item.h). `id_of` maps its indices to samples.
  template <typename StepView, typename IdOf>
  void append_step(const StepView& step, IdOf&& id_of) {
    const std::size_t begin = ids_.size();
    const std::size_t first_batch = batch_ends_.size();
    ids_.resize(begin + step.indices.size());
    for (std::size_t i = 0; i < step.indices.size(); ++i) ids_[begin + i] = id_of(step.indices[i]);
    for (const std::uint32_t end : step.batch_ends) batch_ends_.push_back(begin + end);
    for (const std::uint32_t end : step.rank_ends) rank_ends_.push_back(first_batch + end);
  }

  /// Adds the steps of another plan for the same number of ranks.
  void append(const Plan& more);

  void reserve(std::size_t samples) { ids_.reserve(samples); }

  /// Set in the plan of a whole mixture; null in the plan of an epoch or of a block.
  const PlannedMixture* mixture() const { return mixture_.get(); }
  void set_mixture(std::shared_ptr<const PlannedMixture> mixture) { mixture_ = std::move(mixture); }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(options_.ranks); }
  std::size_t index_of(std::size_t step, int rank) const {
    return step * ranks() + static_cast<std::size_t>(rank);
  }
  static std::size_t begin_of(const std::vector<std::size_t>& ends, std::size_t at) {
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
