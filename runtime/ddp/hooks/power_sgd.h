// Gradients as products of two thin matrices (PowerSGD: Vogels, Karimireddy, Jaggi, NeurIPS 2019). A gradient
// M of n × m elements travels as P (n × r) and Q (m × r): one step of the power iteration, started from the
// step before (warm start). What the product leaves out is added to the next step's gradient (error
// feedback), so that nothing is lost in the long run. PyTorch's powerSGD_hook, under its names and defaults.
//
// Vectors (biases, norms), and matrices that would not get smaller, travel as they are. The first steps
// travel uncompressed too: gradients are large and change fast then.
//
// Threads: as CommHook.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/ddp/comm_hook.h"

namespace lockstep {

struct PowerSgdOptions {
  /// r: larger is more exact and slower. Double it until the loss is as good as without.
  std::int64_t matrix_approximation_rank = 1;

  /// Steps that travel uncompressed before.
  std::int64_t start_power_sgd_iter = 1000;

  /// A matrix is compressed if that makes it at least so many times smaller.
  double min_compression_rate = 2;

  bool use_error_feedback = true;
  bool warm_start = true;

  /// The first Q, which must be the same on all ranks, is drawn from it.
  std::uint64_t random_seed = 0;
};

/// Throws UsageError for a rank below 1 or a negative number of steps.
std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options = {});

}  // namespace lockstep
