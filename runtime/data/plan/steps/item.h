// The planner's short form of a sample, and a step made of such items.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

/// Eight bytes, so that a block of samples stays in the cache while it is planned.
struct Item {
  std::uint32_t index;   ///< in the block; its planner maps it to a SampleId
  std::uint32_t length;  ///< tokens; 0: the sample is skipped
};

/// The samples of a step, rank by rank and micro-batch by micro-batch. Valid until the packer that returned
/// it is used again.
struct StepView {
  std::span<const std::uint32_t> indices;     ///< of the items
  std::span<const std::uint32_t> batch_ends;  ///< where each micro-batch ends, in `indices`
  std::span<const std::uint32_t> rank_ends;   ///< where each rank ends, in `batch_ends`
};

}  // namespace lockstep::data
