// Saves the state of a training between two steps in one file: parameters, the optimizer's state, the
// positions of the loader and the training, and how often each sample was used in this epoch. The file is
// replaced atomically, so a job may be killed at any moment. A training can be resumed on any number of
// ranks.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "examples/text_lm/model.h"
#include "examples/text_lm/progress.h"
#include "runtime/comm/world.h"

namespace lockstep::text_lm {

/// How often each sample was trained on in the current epoch.
class SamplesSeen {
 public:
  explicit SamplesSeen(std::size_t samples) : mine_(samples) {}

  /// Adds samples that this rank trained on: int64 [n].
  void add(const torch::Tensor& sample_ids);

  /// Returns the sum over all ranks, which all call it. Counts are limited to 255.
  std::vector<std::uint8_t> on_all_ranks(World& world) const;

  /// Begins an epoch.
  void clear() { mine_.assign(mine_.size(), 0); }

  /// Continues from the counts that on_all_ranks() returned before the job was resumed. All ranks call it
  /// once.
  void resume(const std::vector<std::uint8_t>& counts, const World& world);

 private:
  std::vector<std::uint8_t> mine_;
};

class Checkpoint {
 public:
  /// With an empty path, nothing is read or written.
  Checkpoint(std::filesystem::path file, LanguageModel model, torch::optim::Optimizer& optimizer,
             World& world);

  /// The contents of a file apart from parameters and the optimizer's state.
  struct Contents {
    std::string loader;  ///< data::Loader::state()
    Progress::State progress;
    std::vector<std::uint8_t> seen;
  };

  /// Reads the file into the model and the optimizer; call it before constructing DistributedDataParallel.
  /// All ranks call it. Returns false if there is no file. Throws Error naming the file if it is damaged or
  /// of another model.
  bool read(Contents& contents);

  /// Writes the file on rank 0; the other ranks do not wait. Throws Error naming the file.
  void write(const Contents& contents);

 private:
  std::filesystem::path file_;
  LanguageModel model_;
  torch::optim::Optimizer& optimizer_;
  World& world_;
};

}  // namespace lockstep::text_lm
