#include <algorithm>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

MicroBatchShape shape_of(std::span<const SampleId> samples, std::span<const std::uint32_t> lengths,
                         const PlanOptions& options) {
  MicroBatchShape shape{.samples = static_cast<std::int64_t>(samples.size())};
  for (const SampleId id : samples) {
    const std::int64_t length = planned_length(id, lengths[sample_of(id)], options);
    shape.longest = std::max(shape.longest, length);
    shape.tokens += length;
    shape.squares += length * length;
  }
  if (options.padded && shape.longest > 0) {
    shape.longest = static_cast<std::int64_t>(
        padded_length(static_cast<std::uint64_t>(shape.longest), options.pad_multiple, options.cap));
    shape.tokens = shape.samples * shape.longest;
    shape.squares = shape.tokens * shape.longest;
  }
  return shape;
}

MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths) {
  MicroBatchShape largest;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      for (std::size_t i = 0; i < plan.micro_batches(step, rank); ++i) {
        const MicroBatchShape found = shape_of(plan.micro_batch(step, rank, i), lengths, plan.options());
        if (cost_of(found, plan.options().cost) > cost_of(largest, plan.options().cost)) largest = found;
      }
    }
  }
  return largest;
}

}  // namespace lockstep::data
