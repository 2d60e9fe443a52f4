// The options of a loader, and the values that it reports about itself.
//
// Threads: values.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/data/batch/image_batch.h"
#include "runtime/data/loader_batch.h"
#include "runtime/data/plan/mixture/mixture.h"

namespace lockstep::data {

/// Where the costs come from with which a loader plans.
enum class CostModel {
  fixed,    ///< PlanOptions::cost and speeds
  learned,  ///< the cost of a sample is fitted to the times of rank 0's steps, for the following blocks
  learned_with_speeds,  ///< so is the speed of each rank: slower ranks get less
};

struct LoaderOptions {
  /// Threads that build batches; 0: one for each CPU in LOCKSTEP_WORKER_CPUS, at most 4, or one if that is
  /// not set.
  int workers = 0;
  /// Maximum number of batches that are being built or are ready.
  int batches_ahead = 4;
  /// Maximum bytes of these batches together. It can reduce their number, but not below one.
  std::size_t bytes_ahead = std::size_t{1} << 30U;
  /// Map shards instead of reading samples, which saves a system call and a copy for each. Not set: map
  /// them if that is safe, as for staged files: on this node's disks and without write permission
  /// (pack::Reader::safe_to_map()). If somebody truncates a shard, a mapping ends the process, but a read throws.
  std::optional<bool> mapped = std::nullopt;
  /// The device of the batches. They are copied to it from page-locked memory, one batch ahead, while it
  /// computes.
  torch::Device device = torch::kCPU;
  /// The token that fills padded rows.
  std::int64_t padding_token = 0;
  /// User code that the workers run on each sample of tokens.
  Transform transform = nullptr;
  /// Plan the next epoch and build its first batches before the loop begins it.
  bool next_epoch_ahead = true;
  /// Set if the data are images. The plan's cap is then the number of images in a batch.
  std::optional<ImageOptions> images = std::nullopt;
  /// Several data sets with weights. The pack holds them one after the other (joined_packs.h), and the loop
  /// is one run of the mixture's steps.
  std::optional<Mixture> mixture = std::nullopt;
  /// Needs a world. Rank 0 decides in the middle of each block; the decision is used from the next block on.
  CostModel cost_model = CostModel::fixed;
  /// Returns the seconds that this rank worked on the samples of the last step; `cost_model` uses it. Not set:
  /// the phases forward and backward of the world's timer, or `other` if the program marks no phases. Set
  /// it if a device still works when these phases end.
  std::function<double()> step_seconds = nullptr;
};

/// The maximum memory of the loader in bytes, without the batches that the loop keeps.
struct LoaderMemory {
  std::size_t batch = 0;    ///< one batch
  std::size_t batches = 0;  ///< number of batches: ahead, in use, and being copied to the device
  bool page_locked = false;
  std::size_t total() const { return batch * batches; }
};

/// Measurements since the construction of the loader, and the settings that follow from them.
struct LoaderAdvice {
  double build_seconds = 0;   ///< mean time of a worker to build a batch
  double longest_build = 0;   ///< maximum of that, in seconds
  double use_seconds = 0;     ///< mean time of the loop between two batches, without waiting
  double waited_seconds = 0;  ///< total wait of the loop, without the first batch of each loop
  int workers = 0;            ///< that are enough
  int batches_ahead = 0;      ///< that are enough
  LoaderMemory memory;        ///< with these settings
};

/// The values learnt so far; the same on all ranks.
struct CostCoefficients {
  Cost cost;                   ///< cost of the following blocks
  std::vector<double> speeds;  ///< speeds of the following blocks; the fastest rank has 1; empty: all equal
  std::optional<FittedCost> fit;  ///< the last fit and its error
  bool fit_is_used = false;       ///< whether it was certain enough to become the cost
  int decisions = 0;              ///< number of decisions, one for each block
};

/// A line such as "a batch takes 1.2 ms to build and 9.8 ms to use: 1 worker and 2 batches ahead suffice
/// (…)".
std::string to_text(const LoaderAdvice& advice);

/// A line such as "a sample of L tokens takes 1.2e-06 L + 3.1e-10 L^2 s (± 3 %, ± 5 %; error of a step 1.4
/// %, 256 steps); speeds 1, 0.52".
std::string to_text(const CostCoefficients& coefficients);

}  // namespace lockstep::data
