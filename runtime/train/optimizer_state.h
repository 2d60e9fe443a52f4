// The state of an optimizer, separate from the optimizer: whole, by parameter, or in pieces, as ranks hold it. Pieces can
// be moved to another partition.
//
// Threads: values; the functions with a communicator are called by all ranks together.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/train/partition.h"

namespace lockstep {

/// The state of one parameter: "exp_avg", "step", …
using ParameterState = std::map<std::string, c10::IValue>;

namespace train {

/// The state of a piece of a parameter: one-dimensional tensors of the piece's size, and values that are the
/// same for all pieces.
struct StatePiece {
  Span span;
  ParameterState state;
};

/// A rank's part of the state, as it is in memory.
struct OptimizerShard {
  Partition partition;
  std::vector<StatePiece> state;  ///< share memory with the optimizer; those without state may be missing
};

/// The names of the entries that the state of a parameter can have: those of a state without values.
std::vector<std::string> state_keys(const torch::optim::OptimizerParamState& empty);

/// Moves the state of all ranks from one partition to another. `mine`: this rank's pieces, whose spans are those of
/// `from`, by parameter; a piece without state may be left out. They are in host memory. Returns a piece for each span of
/// `to`, without state for a parameter that has none. Ranks exchange what has to move, and nothing if no rank has state.
std::vector<StatePiece> redistribute(comm::Communicator& communicator, const Partition& from,
                                     const std::vector<StatePiece>& mine, const Partition& to,
                                     const std::vector<std::string>& keys);

/// Cuts a piece out of a parameter's state; `like` has the parameter's shape and strides.
StatePiece cut(const ParameterState& whole, const torch::Tensor& like, const Span& span);
/// The reverse, for a piece that is the whole parameter.
ParameterState in_shape_of(const torch::Tensor& like, const StatePiece& piece);

/// The tensors of LibTorch's own optimizers are shared, not copied.
ParameterState read_state(const torch::optim::OptimizerParamState& state);
void write_state(const ParameterState& from, torch::optim::OptimizerParamState& into);

torch::Tensor read_options(const torch::optim::OptimizerOptions& options);
void write_options(const torch::Tensor& from, torch::optim::OptimizerOptions& into);

}  // namespace train
}  // namespace lockstep
