// Sums sparse gradients (of an embedding with sparse(true)), without sending the rows that were not looked
// up. Ranks have different rows, so each rank gathers the rows of all ranks and adds up equal ones.
//
// Threads: as for CommHook.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_set>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/comm_hook.h"

namespace lockstep::ddp {

/// The parameters (TensorImpl) of the module's embeddings that have sparse gradients.
std::unordered_set<const void*> sparse_parameters_of(const torch::nn::Module& module);

/// The two communicators of a Reducer.
struct SparseRanks {
  comm::Communicator& host;
  comm::Communicator& device;
};

/// Starts summing `gradient` over the ranks, and passes the sum to `done`. The gradient has the parameter's shape and one
/// sparse dimension; an undefined one counts as empty. `scaled` multiplies the summed rows by the factor; it is called at
/// the end. On a device the host waits for the numbers of rows.
CommFuture sum_sparse(SparseRanks ranks, const torch::Tensor& parameter, const torch::Tensor& gradient,
                      const std::string& label, std::function<torch::Tensor(const torch::Tensor&)> scaled,
                      std::function<void(torch::Tensor)> done);

}  // namespace lockstep::ddp
