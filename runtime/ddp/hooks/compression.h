// Sends gradients in 16 bits, as PyTorch's fp16_compress_hook and bf16_compress_hook do. With one rank per node, and on
// GPUs, this halves the bytes between nodes. With several ranks per node on the CPU it saves a quarter (6 of 8 bytes per
// gradient): a node's sum is sent as f32, and the result in 16 bits.
//
// On the CPU the mean is computed in f32 and rounded once, so no sum overflows.
// - fp16 keeps 11 bits and ranges from 6e-8 to 65504. Gradients are in that range if averaged by count, or with a
//   scaled loss.
// - bf16 keeps 8 bits and the whole range of f32.
//
// Threads: as for CommHook.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/ddp/comm_hook.h"

namespace lockstep {

std::shared_ptr<CommHook> fp16_compress_hook();
std::shared_ptr<CommHook> bf16_compress_hook();

// Sends gradients as products of two thin matrices (PowerSGD: Vogels, Karimireddy, Jaggi, NeurIPS 2019), as
// PyTorch's powerSGD_hook does, with its names and defaults. A gradient M of n × m elements is sent as P (n ×
// r) and Q (m × r): one step of the power iteration, started from the previous step's Q (warm start). The
// error of the product is added to the next step's gradient (error feedback), so that nothing is lost in the
// long run.
//
// Vectors (biases, norms), and matrices that would not get smaller, are sent uncompressed. So are the first
// steps, when gradients are large and change fast.
//
// The errors, the Qs and the number of steps can be saved: checkpointer.add("hook", *hook).

struct PowerSgdOptions {
  /// r. A larger one is more exact and slower. Double it until the loss is as good as without compression.
  std::int64_t matrix_approximation_rank = 1;

  /// The number of uncompressed steps at the beginning.
  std::int64_t start_power_sgd_iter = 1000;

  /// A matrix is compressed if it becomes smaller by at least this factor.
  double min_compression_rate = 2;

  bool use_error_feedback = true;
  bool warm_start = true;

  /// The seed of the first Q; it must be the same on all ranks.
  std::uint64_t random_seed = 0;
};

/// Throws UsageError for a rank below 1 or a negative number of steps.
std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
