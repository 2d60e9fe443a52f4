// Counts how often each sample was trained on in the current epoch, over all ranks and restarts, to show that
// none is lost or repeated.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <vector>

#include "runtime/comm/world.h"

namespace lockstep::text_lm {

class SamplesSeen {
 public:
  explicit SamplesSeen(std::size_t samples) : mine_(samples) {}

  /// Adds samples that this rank trained on: int64 [n].
  void add(const torch::Tensor& sample_ids);

  /// Returns the sum over all ranks, which all call it: uint8 [samples]. Counts are limited to 255.
  torch::Tensor on_all_ranks(World& world) const;

  /// Begins an epoch.
  void clear() { mine_.assign(mine_.size(), 0); }

  /// Continues from the counts that on_all_ranks() returned before the job was resumed. All ranks call it
  /// once.
  void resume(const torch::Tensor& counts, const World& world);

 private:
  std::vector<std::uint8_t> mine_;
};

}  // namespace lockstep::text_lm
