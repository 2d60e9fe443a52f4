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

  /// Gradients travel in buckets of this many MiB: larger ones travel faster, smaller ones start earlier.
  double bucket_cap_mb = 25;

  /// The bucket that is ready first is smaller, so that the first transfer starts early in backward.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;

  /// Rank 0's buffers (the running statistics of batch norm) are sent to all before the first forward in
  /// training mode and before each that follows a synchronised one.
  bool broadcast_buffers = true;

  /// Set it where forward does not use every parameter every time: what is unused is then found by walking
  /// the graph from forward's outputs, and counts as zero. It costs that walk and a small extra message per
  /// step. Otherwise an unused parameter is an error.
  bool find_unused_parameters = false;

  /// Promises that every step uses the same parameters equally often. What is unused is learned in the first
  /// step and costs nothing afterwards; a step that differs is an error.
  bool static_graph = false;

  /// .grad is a view of the memory that ranks exchange, so that nothing is copied. PyTorch's default is
  /// false: gradients are copied into the buckets and back, and .grad stays the user's own tensor.
  bool gradient_as_bucket_view = true;

  /// After the first step the buckets are laid out once more, in the order in which gradients arrived.
  bool rebuild_buckets = true;

  /// After a few steps rank 0 chooses first_bucket_bytes and bucket_cap_mb from what it measured, for all,
  /// once. Has no effect where deterministic algorithms are asked for: another layout gives other bits.
  bool autotune_buckets = false;
};

}  // namespace lockstep
