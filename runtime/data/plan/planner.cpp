#include "runtime/data/plan/planner.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <utility>

namespace lockstep::data {

Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options, std::string fingerprint) {
  if (fingerprint.empty()) fingerprint = fingerprint_of(lengths);
  const LengthsInMemory source(lengths, std::move(fingerprint));
  EpochPlanner planner(source, options);
  Plan plan(options, lengths.size(), source.fingerprint());
  plan.reserve(lengths.size());
  for (PlannedBlock block; planner.next_block(block);) plan.append(block.plan);
  return plan;
}

std::string fingerprint_of(std::span<const std::uint32_t> lengths) {
  // Hashes the memory, which holds little-endian integers on all supported machines.
  return fmt::format("lengths-{:016x}", XXH3_64bits(lengths.data(), lengths.size_bytes()));
}

}  // namespace lockstep::data
