// Whether each data set of a mixture is gone through as it should be: every sample once in each of its
// epochs. Counted from a finished plan, without any of the planner's code.
//
// Threads: a MixtureCoverage belongs to one thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>

#include "runtime/data/plan/mixture/mixture.h"
#include "runtime/data/plan/planner.h"

namespace lockstep::data {

class MixtureCoverage {
 public:
  /// Of a plan of a mixture, which must outlive this, for samples with these lengths.
  MixtureCoverage(const Plan& plan, std::span<const std::uint32_t> lengths);

  /// Of a sample in a step, or left over.
  void add(SampleId id) { ++times_[id]; }

  struct Counts {
    std::uint64_t missing = 0;  ///< samples, or pieces, that an epoch should have had
    std::uint64_t twice = 0;    ///< appearances beyond the first in an epoch
    std::string first;          ///< says of one of them what is wrong; empty: nothing
  };
  Counts count() const;

 private:
  struct Part {
    const std::string& name;
    std::uint64_t begin;
    std::uint64_t samples;
    std::uint64_t drawn;
  };
  void count_part(const Part& part, Counts& counts) const;
  std::uint64_t pieces_at_least(std::uint64_t length) const;
  std::uint64_t times(SampleId id) const;

  const Plan& plan_;
  const std::span<const std::uint32_t> lengths_;
  std::uint64_t shortest_cut_ = ~std::uint64_t{0};  // of all ranges: longer samples may have lost their ends
  std::unordered_map<SampleId, std::uint64_t> times_;
};

}  // namespace lockstep::data
