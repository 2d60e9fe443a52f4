#include <cmath>

#include "common/error.h"
#include "common/process.h"
#include "runtime/ddp/model_faults.h"
#include "runtime/train/debug.h"
#include "runtime/train/rehearsal.h"

namespace lockstep {

ModelFindings check_model(const torch::nn::Module& module, const std::function<torch::Tensor()>& forward,
                          const DistributedDataParallelOptions& options) {
  const train::Rehearsal rehearsal(module);
  const torch::AutoGradMode with_grad(true);
  ddp::FirstForward observed(module);
  const torch::Tensor loss = forward();
  if (!loss.defined() || !loss.requires_grad())
    fail_usage("check_model: the loss does not depend on any trained parameter; return the loss of a batch");
  return observed.findings({loss}, options);
}

void check_loss(const World& world, double loss, std::int64_t step) {
  if (std::isfinite(loss)) return;
  fail("the loss is {} in step {} on {}: lower the learning rate or clip gradients", loss, step,
       rank_name(world.rank(), world.node_name()));
}

}  // namespace lockstep
