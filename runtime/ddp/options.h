// Options of DistributedDataParallel. Those that PyTorch has too have PyTorch's names and defaults, unless a
// comment says otherwise. The times of a backward. The findings of the check of a model.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace lockstep {

struct DistributedDataParallelOptions {
  /// The size of a bucket of gradients in MiB. Larger buckets are reduced faster, smaller ones start earlier.
  double bucket_cap_mb = 25;

  /// The size of the bucket that is ready first. It is smaller, so that the first transfer starts early in
  /// backward.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;

  /// Sends rank 0's buffers (the running statistics of batch norm) to all ranks before the first forward in
  /// training mode, and before each forward that follows a synchronised one.
  bool broadcast_buffers = true;

  /// Set this if forward does not always use every parameter. Unused parameters are then found by walking the
  /// graph from forward's outputs, and their gradients count as zero. This costs the walk and one more small
  /// message per step. Without it, an unused parameter is an error.
  bool find_unused_parameters = false;

  /// Promises that every step uses the same parameters equally often. The first step shows which parameters
  /// are unused; later steps pay nothing for them. A step that differs is an error.
  bool static_graph = false;

  /// Makes .grad a view of the memory that ranks exchange, so that nothing is copied. PyTorch's default is
  /// false: gradients are copied into the buckets and back, and .grad stays a separate tensor.
  bool gradient_as_bucket_view = true;

  /// Compares the trained parameters of all ranks in every so many synchronised backwards, bit by bit; 0: never. If they
  /// differ, backward throws Error on all ranks. Ranks with different processors or numbers of threads may round
  /// differently, and their models drift apart.
  std::int64_t check_replicas_every = 100;

  /// Rank 0 looks at the first forward in training for common mistakes, and prints them (docs/users/toolkit.md#check-of-a-model).
  /// LOCKSTEP_CHECK, on or off, decides otherwise.
  bool check_model = false;
};

/// The findings of one forward. check_model() (runtime/train/debug.h) returns it.
struct ModelFindings {
  /// Biases that a batch norm right after them subtracts again: they only cost time. Build the layer without
  /// a bias.
  std::vector<std::string> biases_before_batch_norm{};
  /// Trained parameters that backward does not reach: unused, or cut off by detach(). DistributedDataParallel
  /// refuses them unless find_unused_parameters is set.
  std::vector<std::string> parameters_without_gradient{};
  /// Operations whose result is float although autocast was on in the forward, and how often. Those that need the
  /// range (norms, losses) stay float for good reasons; a matrix product here is a reason to look.
  std::map<std::string, int> float_operations{};
  /// A sentence for each of: dimensions that are not multiples of 8, batch norms of few samples, and sums in half
  /// precision.
  std::vector<std::string> others{};

  /// A line for each finding; empty without any.
  std::string text() const;
};

struct JoinOptions {
  /// true: gradients are divided by the number of ranks. false: by the number of ranks that still have data.
  bool divide_by_initial_world_size = true;

  /// false: the loop runs without join, so all ranks must have the same number of batches.
  bool enable = true;

  /// Ends the loop with an Error on all ranks as soon as one rank has no more data.
  bool throw_on_early_termination = false;
};

/// The events of the last synchronised backward, for tools that look at single buckets, in monotonic nanoseconds.
struct SyncTrace {
  struct Launch {
    std::size_t bucket = 0;
    std::size_t bytes = 0;
    std::uint64_t ready_ns = 0;      ///< the bucket's last gradient was complete
    std::uint64_t asked_ns = 0;      ///< this rank started the reduction
    std::uint64_t all_asked_ns = 0;  ///< the last rank started it; 0: unknown (between nodes: a step later)
    int late_rank = -1;              ///< that rank; -1: not known
    std::uint64_t done_ns = 0;
  };
  std::vector<Launch> launches;  ///< in the order in which reductions started
  std::uint64_t backward_began_ns = 0;
  std::uint64_t backward_ended_ns = 0;
  std::uint64_t finished_ns = 0;
};

}  // namespace lockstep
