#include "staging/transfer/exchange/stream_plan.h"

#include <algorithm>

namespace lockstep::transfer {

StreamPlan::StreamPlan(std::vector<const ChunkPlan*> plans) : plans_(std::move(plans)), first_{0} {
  for (const ChunkPlan* const plan : plans_) first_.push_back(first_.back() + plan->size());
}

StreamPlan::Place StreamPlan::place(std::size_t chunk) const {
  const auto after = std::upper_bound(first_.begin(), first_.end(), chunk);
  const auto source = static_cast<std::size_t>(after - first_.begin()) - 1;
  return {source, chunk - first_[source]};
}

std::uint32_t StreamPlan::bytes(std::size_t chunk) const {
  const Place at = place(chunk);
  return plans_[at.source]->bytes(at.chunk);
}

}  // namespace lockstep::transfer
