// One seed for a whole training, so that a second run gives bitwise identical losses (on CPUs, with the same number of
// ranks and threads).
//
//   const lockstep::Seeds seeds(42);
//   seeds.seed_model();                  // the same on all ranks
//   Model model(options);
//   seeds.seed_rank(world);              // from here on dropout differs between ranks
//   plan.seed = seeds.data();            // the order of the samples, and the seeds that workers give transforms
//
// On a GPU also set deterministic algorithms (settings.h).
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>

#include "runtime/comm/world.h"

namespace lockstep {

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

}  // namespace lockstep
