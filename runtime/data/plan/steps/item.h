// A sample as the planner handles it, and a step as it hands it out.
#pragma once

#include <cstdint>
#include <span>

namespace lockstep::data {

/// Eight bytes, so that a block of samples stays in the cache while it is planned.
struct Item {
  std::uint32_t index;   ///< in the block that is planned; its planner turns it into a SampleId
  std::uint32_t length;  ///< tokens; 0: the sample is left out
};

/// A step: samples rank by rank and micro-batch by micro-batch. Valid until its maker is used again.
struct StepView {
  std::span<const std::uint32_t> indices;     ///< of the items
  std::span<const std::uint32_t> batch_ends;  ///< of each micro-batch, in `indices`
  std::span<const std::uint32_t> rank_ends;   ///< of each rank, in `batch_ends`
};

}  // namespace lockstep::data
