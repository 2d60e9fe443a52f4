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

namespace train {

/// Throws UsageError as apply_settings() does. `cuda`: whether there is a GPU.
void check_settings(const TrainingSettings& settings, bool cuda);

/// "deterministic algorithms off, anomaly mode off"; with the settings of a GPU only if there is one.
std::string describe(const TrainingSettings& settings, bool cuda);

/// A line for each setting that slows the run. `cpus`: those of this rank.
std::vector<std::string> slow_settings(const TrainingSettings& settings, int cpus);

}  // namespace train
}  // namespace lockstep
