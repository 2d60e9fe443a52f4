#include "runtime/train/checkpoint/optimizer_type.h"

#include "common/error.h"
#include "runtime/train/fused_optimizer.h"

namespace lockstep::checkpoint {
namespace {

using State = std::unique_ptr<torch::optim::OptimizerParamState>;

template <typename Type>
bool is(const torch::optim::Optimizer& optimizer) {
  return dynamic_cast<const Type*>(&optimizer) != nullptr;
}

}  // namespace

std::string optimizer_type(const torch::optim::Optimizer& optimizer) {
  if (is<Lamb>(optimizer)) return "Lamb";
  if (is<torch::optim::AdamW>(optimizer)) return "AdamW";
  if (is<torch::optim::Adam>(optimizer)) return "Adam";
  if (is<torch::optim::SGD>(optimizer)) return "SGD";
  if (is<torch::optim::RMSprop>(optimizer)) return "RMSprop";
  if (is<torch::optim::Adagrad>(optimizer)) return "Adagrad";
  fail_usage(
      "a checkpoint cannot hold this optimizer: only Adam, AdamW, SGD, RMSprop, Adagrad and Lamb; save "
      "another "
      "one as a text, with the two functions of Checkpointer::add()");
}

State make_parameter_state(const torch::optim::Optimizer& optimizer) {
  if (is<torch::optim::AdamW>(optimizer)) return std::make_unique<torch::optim::AdamWParamState>();
  if (is<torch::optim::Adam>(optimizer)) return std::make_unique<torch::optim::AdamParamState>();
  if (is<torch::optim::SGD>(optimizer)) return std::make_unique<torch::optim::SGDParamState>();
  if (is<torch::optim::RMSprop>(optimizer)) return std::make_unique<torch::optim::RMSpropParamState>();
  return std::make_unique<torch::optim::AdagradParamState>();
}

}  // namespace lockstep::checkpoint
