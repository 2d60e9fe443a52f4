// A training as it stands between two steps, in one file: parameters, the optimizer's state, where the loader
// is, how far the training is, and how often each sample was used in this epoch. Written so that a kill at
// any moment leaves the file before it or the new one; resumed on any number of ranks.
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

  /// This rank has trained on these: int64 [n].
  void add(const torch::Tensor& sample_ids);

  /// Adds up over the ranks, which all call it. Counts end at 255.
  std::vector<std::uint8_t> on_all_ranks(World& world) const;

  /// Begins an epoch.
  void clear() { mine_.assign(mine_.size(), 0); }

  /// What on_all_ranks() said before the job was resumed; once on all ranks.
  void resume(const std::vector<std::uint8_t>& counts, const World& world);

 private:
  std::vector<std::uint8_t> mine_;
};

class Checkpoint {
 public:
  /// No file: an empty path.
  Checkpoint(std::filesystem::path file, LanguageModel model, torch::optim::Optimizer& optimizer,
             World& world);

  /// What a file holds beside parameters and the optimizer's state.
  struct Contents {
    std::string loader;  ///< data::Loader::state()
    Progress::State progress;
    std::vector<std::uint8_t> seen;
  };

  /// Reads the file into the model and the optimizer, which no DDP may hold yet. False where there is none.
  /// All ranks call it. Throws Error where the file is damaged or of another model, naming it.
  bool read(Contents& contents);

  /// Writes the file on rank 0; the other ranks go on. Throws Error naming it.
  void write(const Contents& contents);

 private:
  std::filesystem::path file_;
  LanguageModel model_;
  torch::optim::Optimizer& optimizer_;
  World& world_;
};

}  // namespace lockstep::text_lm
