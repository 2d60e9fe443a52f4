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

/// An optimizer's state in a checkpoint, which is put together one parameter at a time. The sections and the layout must
/// outlive it.
class SavedOptimizer {
 public:
  /// Throws Error naming the first difference if the groups or the parameters differ.
  SavedOptimizer(const std::vector<Section>& ranks, const OptimizerLayout& layout);

  /// Throws Error naming the first difference if the state is not whole or does not fit. Reads no element.
  void check() const;

  /// The options of the groups, from a section that was loaded.
  std::vector<torch::Tensor> groups() const;
  const std::vector<std::string>& parameters() const { return names_; }
  /// The state in the parameter's shape; only the elements [begin, end), in the order of the parameter's memory, are
  /// defined. Shares memory with the sections where it can.
  ParameterState state(const std::string& parameter, std::int64_t begin, std::int64_t end) const;
  /// Whether the rank's section has some of these elements.
  bool has(std::size_t rank, const std::string& parameter, std::int64_t begin, std::int64_t end) const;

 private:
  struct Piece {
    std::size_t rank;
    const nlohmann::json* description;
  };
  bool overlaps(const Piece& piece, const torch::Tensor& parameter, std::int64_t begin,
                std::int64_t end) const;

  const std::vector<Section>& ranks_;
  const OptimizerLayout& layout_;
  std::vector<std::string> names_;  // of the parameters with state
  std::map<std::string, std::vector<Piece>> pieces_;
};

}  // namespace lockstep::checkpoint
