// What can be chosen about DistributedDataParallel. The names and defaults are PyTorch's where PyTorch has
// them.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lockstep {

/// What the sum of all ranks' gradients is divided by.
enum class Average : std::uint8_t {
  tokens,  ///< the tokens that count, of all ranks and micro-batches: the gradient of the whole batch,
           ///< exactly
  ranks,   ///< the number of ranks, as PyTorch does
};

struct DistributedDataParallelOptions {
  Average average = Average::tokens;

  /// Gradients travel in buckets of this many bytes: larger ones travel faster, smaller ones start earlier.
  std::size_t bucket_bytes = std::size_t{25} << 20;

  /// The bucket that is ready first is smaller, so that the first transfer starts early in backward.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;

  /// Rank 0's buffers (the running statistics of batch norm) are sent to all before each synchronised forward
  /// in training mode.
  bool broadcast_buffers = true;

  /// Set it where forward does not use every parameter every time. It costs a small extra message per step,
  /// and what is unused on this rank travels only when backward is over. Otherwise an unused parameter is an
  /// error.
  bool find_unused_parameters = false;

  /// After the first step the buckets are laid out once more, in the order in which gradients arrived.
  bool rebuild_buckets = true;
};

}  // namespace lockstep
