// The update of the parameters at the end of a step: clips the gradients, and runs the optimizer that --optimizer names.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <memory>

#include "examples/text_lm/model.h"
#include "examples/text_lm/options.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {

using Ddp = DistributedDataParallel<LanguageModelImpl>;

class Update {
 public:
  /// Weight decay applies to matrices only. All ranks call it.
  Update(Ddp& ddp, const LanguageModel& model, const Options& options);

  /// Clips the gradients, updates the parameters and sets the gradients to zero. All ranks call it.
  void apply();

  /// The optimizer whose groups hold the learning rate.
  torch::optim::Optimizer& optimizer() { return *optimizer_; }

  /// Adds the optimizer's state to the checkpoints. Add the model before.
  void add_to(Checkpointer& checkpointer);

 private:
  LanguageModel model_;
  double clip_;
  std::shared_ptr<DistributedOptimizerBase> sharded_;  // null unless each rank has a part of the state
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace lockstep::text_lm
