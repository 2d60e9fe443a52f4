// Assigns parameters to buckets, whose gradients are reduced together.
//
// Threads: may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace lockstep::ddp {

/// The size of a parameter, for bucketing. Only parameters of the same group (element type) share a bucket.
struct ParameterSize {
  std::size_t bytes = 0;
  std::uint32_t group = 0;
};

/// Buckets, each a list of parameter indices.
using Assignment = std::vector<std::vector<std::size_t>>;

/// Fills buckets in the given order of parameters. A bucket is closed as soon as it has reached its limit. In
/// each group the first bucket has limits[0], the second limits[1], and so on; the last limit is used for all
/// further buckets. Buckets are returned in the order of their first parameter. This is PyTorch's rule, so
/// bucket sizes tuned for PyTorch are good here too.
Assignment assign_buckets(std::span<const ParameterSize> parameters, std::span<const std::size_t> order,
                          std::span<const std::size_t> limits);

}  // namespace lockstep::ddp
