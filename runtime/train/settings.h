// The settings of LibTorch that change results or speed, in one struct that is applied once, at the start:
//
//   lockstep::World world(argc, argv);
//   lockstep::apply_settings(world, {.deterministic = true});
//
// Rank 0 prints them in one line, and a warning for each that slows the run. World has already chosen and printed the
// CPUs and the heap.
//
// Threads: the main thread, before the model is constructed.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/world.h"

namespace lockstep {

/// How precisely a GPU multiplies float matrices, as torch.set_float32_matmul_precision.
enum class MatmulPrecision : std::uint8_t {
  highest,  ///< float
  high,     ///< TF32, or three products of bfloat16
  medium,   ///< bfloat16 where LibTorch has it, else TF32
};

/// The defaults are PyTorch's. They are set even if something else was set before.
struct TrainingSettings {
  bool deterministic = false;    ///< only algorithms that give the same bits again
  bool cudnn_benchmark = false;  ///< cuDNN measures its algorithms for each new shape, and takes the fastest
  MatmulPrecision matmul_precision = MatmulPrecision::highest;
  bool cudnn_tf32 = true;     ///< convolutions in TF32
  int threads = 0;            ///< for computing; 0: as World chose
  bool anomaly_mode = false;  ///< backward stops at the first NaN, and names the forward of that operation
};

/// Sets them. All ranks call it. Throws UsageError for settings that contradict each other or the environment, and
/// if they differ between ranks.
void apply_settings(World& world, const TrainingSettings& settings = {});

/// One seed for a whole training, so that a second run gives bitwise identical losses (on CPUs, with the same number of
/// ranks and threads).
///
///   const lockstep::Seeds seeds(42);
///   seeds.seed_model();                  // the same on all ranks
///   Model model(options);
///   seeds.seed_rank(world);              // from here on dropout differs between ranks
///   plan.seed = seeds.data();            // the order of the samples, and the seeds that workers give transforms
///
/// On a GPU also set deterministic algorithms.
class Seeds {
 public:
  explicit Seeds(std::uint64_t seed) : seed_(seed) {}

  /// Seeds LibTorch's generators alike on all ranks. Call it before the model is constructed.
  void seed_model() const { torch::manual_seed(mixed(0)); }

  /// Seeds LibTorch's generators differently on each rank. Call it after the model is constructed.
  void seed_rank(const World& world) const {
    torch::manual_seed(mixed(2 + static_cast<std::uint64_t>(world.rank())));
  }

  /// For data::PlanOptions::seed, or for a sampler of your own. The loader also derives the seeds of samples and
  /// workers from it. The same on all ranks.
  std::uint64_t data() const { return mixed(1); }

 private:
  // SplitMix64 (Steele et al. 2014): neighbouring seeds give unrelated numbers, also in the low 32 bits, which are
  // all that the CPU's generator uses.
  std::uint64_t mixed(std::uint64_t purpose) const {
    std::uint64_t z = seed_ + (purpose + 1) * 0x9e3779b97f4a7c15U;
    z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31U);
  }

  std::uint64_t seed_;
};

namespace train {

/// Throws UsageError as apply_settings() does. `cuda`: whether there is a GPU.
void check_settings(const TrainingSettings& settings, bool cuda);

/// "deterministic algorithms off, anomaly mode off"; with the settings of a GPU only if there is one.
std::string describe(const TrainingSettings& settings, bool cuda);

/// A line for each setting that slows the run. `cpus`: those of this rank.
std::vector<std::string> slow_settings(const TrainingSettings& settings, int cpus);

}  // namespace train

// The memory format channels_last (NHWC). Convolutions in it are faster on CPUs with AVX-512 and on GPUs with tensor
// cores. Weights and batches must both have it; the loader's images have it already.
//
//   lockstep::to_channels_last(*model);     // before DistributedDataParallel and the optimizer are made
//   …
//   model(lockstep::to_channels_last(images));

/// The tensor in channels_last order, if it has four dimensions (images) or five (volumes); other tensors are
/// returned unchanged. Copies only if the order differs.
inline torch::Tensor to_channels_last(const torch::Tensor& tensor) {
  if (tensor.dim() == 4) return tensor.contiguous(torch::MemoryFormat::ChannelsLast);
  if (tensor.dim() == 5) return tensor.contiguous(torch::MemoryFormat::ChannelsLast3d);
  return tensor;
}

/// Changes all parameters and buffers of four or five dimensions. Gradients must not exist yet.
inline void to_channels_last(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : module.parameters()) parameter.set_data(to_channels_last(parameter));
  for (auto& buffer : module.buffers()) buffer.set_data(to_channels_last(buffer));
}

}  // namespace lockstep
