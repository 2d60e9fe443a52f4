#include <algorithm>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {
namespace {

struct Costly {
  MicroBatchShape shape;
  double cost = 0;
};

Costly measure(std::span<const SampleId> samples, std::span<const std::uint32_t> lengths,
               const PlanOptions& options) {
  Costly result;
  std::uint64_t longest = 0;
  for (const SampleId id : samples) {
    const std::uint64_t length = planned_length(id, lengths[sample_of(id)], options);
    longest = std::max(longest, length);
    result.shape.tokens += static_cast<std::int64_t>(length);
    result.cost += options.cost.of(length);
  }
  result.shape.samples = static_cast<std::int64_t>(samples.size());
  if (options.padded && longest > 0) {
    longest = padded_length(longest, options.pad_multiple, options.cap);
    result.shape.tokens = result.shape.samples * static_cast<std::int64_t>(longest);
    result.cost = static_cast<double>(samples.size()) * options.cost.of(longest);
  }
  result.shape.longest = static_cast<std::int64_t>(longest);
  return result;
}

}  // namespace

MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths) {
  Costly largest;
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      for (std::size_t i = 0; i < plan.micro_batches(step, rank); ++i) {
        const Costly found = measure(plan.micro_batch(step, rank, i), lengths, plan.options());
        if (found.cost > largest.cost) largest = found;
      }
    }
  }
  return largest.shape;
}

}  // namespace lockstep::data
