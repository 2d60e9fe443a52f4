// Summing sparse gradients (an embedding's, made with sparse(true)): rows that were not looked up do not
// travel. Ranks have different rows, so everyone gathers everyone's rows and adds up those that are the same.
//
// Threads: as CommHook.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/comm_hook.h"

namespace lockstep::ddp {

/// The parameters of the module's embeddings that are made to have sparse gradients.
std::unordered_set<const void*> sparse_parameters_of(const torch::nn::Module& module);

/// Starts summing `gradient` (undefined counts as empty), which has the parameter's shape and one sparse
/// dimension, and gives the sum × *factor to `done`. The factor is read at the end.
CommFuture sum_sparse(comm::Communicator& communicator, const torch::Tensor& parameter,
                      const torch::Tensor& gradient, const std::string& label,
                      std::shared_ptr<const double> factor, std::function<void(torch::Tensor)> done);

}  // namespace lockstep::ddp
