// Which parameters' gradients travel together.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ddp {

/// What bucketing needs to know about a parameter. Only those of the same group (element type, device) share
/// a bucket.
struct ParameterSize {
  std::size_t bytes = 0;
  std::uint32_t group = 0;
  bool alone = false;  ///< shares no bucket: its gradient is sparse
};

/// Buckets, each a list of parameter indices.
using Assignment = std::vector<std::vector<std::size_t>>;

/// Fills buckets in the given order of parameters. A bucket is closed as soon as it has reached its limit; in
/// each group the first bucket has limits[0], the second limits[1], and so on, the last limit being used
/// again. Buckets come in the order of their first parameter. This is PyTorch's rule, so that bucket sizes
/// tuned there hold here.
Assignment assign_buckets(std::span<const ParameterSize> parameters, std::span<const std::size_t> order,
                          std::span<const std::size_t> limits);

}  // namespace lockstep::ddp
