// The state of an optimizer in a checkpoint, as the ranks that saved kept it. The first rank's section has the layout: the
// parameters, the groups, and the buckets; every rank computes from them which rank saved which elements. The section of each
// rank has its pieces, as tensors, and the numbers of their parameters, which differ if some were not used.
//
// Threads: values.
#pragma once

#include <torch/torch.h>

#include <string>
#include <utility>
#include <vector>

#include "runtime/train/checkpoint/item_files.h"
#include "runtime/train/checkpoint/section.h"
#include "runtime/train/optimizer_state.h"
#include "runtime/train/partition.h"

namespace lockstep::checkpoint {

/// The parts of an optimizer that must be the same when its state is loaded.
struct OptimizerLayout {
  std::string type;                              ///< "AdamW"
  std::vector<std::vector<std::string>> groups;  ///< the names of the parameters in each group
  std::vector<std::pair<std::string, torch::Tensor>> parameters;  ///< of all groups, one after the other
};

/// The section of a rank. `state`: of the spans that `partition` gives to the rank; those without state may be missing.
Section optimizer_section(const OptimizerLayout& layout, const torch::optim::Optimizer& options,
                          const train::Partition& partition, int rank,
                          const std::vector<train::StatePiece>& state);

/// Throws Error naming the first difference if the groups or the parameters differ.
void check_optimizer(const Section& saved, const OptimizerLayout& layout);

/// As `ranks` ranks saved it.
train::Partition saved_partition(const Section& saved, int ranks);

struct OptimizerContent {
  std::vector<train::StatePiece> state;  ///< of the wanted spans, in their order
  std::vector<torch::Tensor> groups;     ///< their options
};
/// Reads the files that have some of the wanted elements, and verifies them. `keys`: train::state_keys(). Throws Damaged.
OptimizerContent read_optimizer(const Section& saved, const ItemFiles& files, const OptimizerLayout& layout,
                                const std::vector<train::Span>& wanted, const std::vector<std::string>& keys);

}  // namespace lockstep::checkpoint
