// The optimizers whose state a checkpoint can hold.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <memory>
#include <string>

namespace lockstep::checkpoint {

/// "AdamW" also for FusedAdamW, whose state is the same; "Lamb". Throws UsageError for other types.
std::string optimizer_type(const torch::optim::Optimizer& optimizer);

/// The empty state of one parameter of such an optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> make_parameter_state(
    const torch::optim::Optimizer& optimizer);

}  // namespace lockstep::checkpoint
