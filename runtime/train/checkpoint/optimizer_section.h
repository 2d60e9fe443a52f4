// The state of an optimizer as a section of a checkpoint: whole, or in pieces as ranks hold it.
//
// Threads: values.
#pragma once

#include <torch/torch.h>

#include <map>
#include <string>
#include <vector>

#include "runtime/train/checkpoint/section.h"
#include "runtime/train/distributed_optimizer.h"
#include "runtime/train/optimizer_state.h"

namespace lockstep::checkpoint {

/// The parts of an optimizer that must be the same when its state is loaded.
struct OptimizerLayout {
  std::string type;                              ///< "AdamW"
  std::vector<std::vector<std::string>> groups;  ///< the names of the parameters in each group
  std::map<std::string, torch::Tensor> parameters;
};

/// The options of the groups, and the state of pieces of parameters.
Section optimizer_section(const OptimizerLayout& layout, const torch::optim::Optimizer& options,
                          const std::vector<OptimizerShard::Piece>& pieces);

/// Puts the sections of all ranks together. Throws Error if they do not make a whole state, or if it does not
/// fit, naming the first difference.
OptimizerState whole_state(const std::vector<Section>& ranks, const OptimizerLayout& layout);

}  // namespace lockstep::checkpoint
