// The state of an optimizer apart from the optimizer: whole, by parameter, as it is saved; and in pieces, as
// ranks hold it, which can be cut and put together in other ways.
//
// Threads: values; the functions with a communicator are called by all ranks together.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep {

/// What an optimizer knows of one parameter: "exp_avg", "step", …
using ParameterState = std::map<std::string, c10::IValue>;

/// Of all parameters, whole and in the parameters' shapes: independent of how many ranks there are.
struct OptimizerState {
  std::map<std::string, ParameterState> parameters;  ///< by the parameter's name
  std::vector<torch::Tensor> groups;  ///< the options of each group, as LibTorch serialises them

  /// What torch.load reads in Python.
  std::string to_bytes() const;
  /// Throws Error on what to_bytes has not made.
  static OptimizerState from_bytes(const std::string& bytes);
};

namespace train {

/// The elements [begin, end) of a parameter, counted as they lie in memory.
struct Span {
  std::size_t parameter = 0;
  std::int64_t begin = 0;
  std::int64_t end = 0;

  std::int64_t size() const { return end - begin; }
};

/// The state of a piece of a parameter: tensors in one dimension, of the piece's size, and what is the same
/// for all pieces.
struct Piece {
  Span span;
  ParameterState state;
};

/// All ranks' pieces cut anew: the state of `wanted`, in the same order; empty where there is none.
std::vector<Piece> redistribute(comm::Communicator& communicator, const std::vector<Piece>& mine,
                                const std::vector<Span>& wanted);

/// A piece of a whole parameter's state; `like` has the parameter's shape and strides.
Piece cut(const ParameterState& whole, const torch::Tensor& like, const Span& span);
/// The other way round, for a piece that is the whole.
ParameterState in_shape_of(const torch::Tensor& like, const Piece& piece);

ParameterState read_state(const torch::optim::OptimizerParamState& state);
void write_state(const ParameterState& from, torch::optim::OptimizerParamState& into);

torch::Tensor read_options(const torch::optim::OptimizerOptions& options);
void write_options(const torch::Tensor& from, torch::optim::OptimizerOptions& into);

}  // namespace train
}  // namespace lockstep
