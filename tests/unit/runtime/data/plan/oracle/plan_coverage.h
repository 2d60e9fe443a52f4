// Counts how often a finished plan uses each sample and piece. The right number is one in an epoch; in a
// mixture, one in each epoch of the sample's data set. The counts share no code with the planner, so they
// find its mistakes.
//
// Threads: a PlanCoverage belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

class Plan;

class PlanCoverage {
 public:
  /// Counts only the pieces that a mixture has left. `plan` and `lengths` must outlive this object.
  PlanCoverage(const Plan& plan, std::span<const std::uint32_t> lengths);

  /// Counts one use. Returns the number of uses before.
  std::uint32_t add(SampleId id) { return uses(id)++; }

  struct Counts {
    std::uint64_t skipped = 0;     ///< samples of an epoch that are over the cap (TooLong::skip)
    std::uint64_t missing = 0;     ///< uses that should be there and are not, without `skipped`
    std::uint64_t duplicated = 0;  ///< uses that should not be there
    std::string first_error;       ///< describes the first missing or duplicated use; empty if there is none
  };
  Counts count() const;

 private:
  struct PartUse {
    std::string name;
    std::uint64_t begin;
    std::uint64_t samples;
    std::uint64_t drawn;
  };
  void count_missing(const PartUse& part, Counts& counts) const;
  std::uint64_t pieces_in_every_epoch(std::uint64_t length) const;
  std::size_t part_of(SampleId id) const;
  std::string describe(SampleId id, std::uint64_t expected) const;
  std::uint32_t& uses(SampleId id) { return id < whole_uses_.size() ? whole_uses_[id] : other_uses_[id]; }
  std::uint32_t uses(SampleId id) const;

  const Plan& plan_;
  const std::span<const std::uint32_t> lengths_;
  std::vector<PartUse> parts_;             // an epoch is one part
  std::vector<std::uint32_t> whole_uses_;  // of ids without a piece and an epoch
  std::unordered_map<SampleId, std::uint32_t> other_uses_;
};

}  // namespace lockstep::data
