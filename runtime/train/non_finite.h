// Ends a training whose loss is infinite or not a number, and finds the place where the first such value was made.
//
//   lockstep::check_loss(world, loss, step, [&] {
//     return lockstep::first_non_finite(*model, [&] {
//       const lockstep::Autocast autocast(torch::kCPU);  // if the training has one
//       loss_of(model(batch.inputs), batch.targets);
//     });
//   });
//
// Threads: the training thread. Neither function communicates.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

#include "runtime/comm/world.h"

namespace lockstep {

/// Throws Error that names the step and this rank if the loss is not finite. `find` is called only then; its result
/// becomes part of the message.
void check_loss(const World& world, double loss, std::int64_t step,
                const std::function<std::string()>& find = nullptr);

/// Describes where the first value that is infinite or not a number comes from: a parameter or buffer, or the first
/// operation that made one out of finite values, with the module to which its weights belong (or that ran last). For
/// that it runs `forward` once, slowly. `forward` must compute as the training does, with the same Autocast.
/// Buffers and random numbers stay as they were. Says so if it finds nothing.
std::string first_non_finite(const torch::nn::Module& module, const std::function<void()>& forward);

}  // namespace lockstep
