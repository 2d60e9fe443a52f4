// A training job in which one rank alone changes its model. changed_model_failure_test starts it.
//
//   mpirun -np 2 changing_job loaded 1
#include <torch/torch.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "runtime/ddp/distributed_data_parallel.h"

namespace {

struct StackImpl : torch::nn::Module {
  StackImpl() { first = register_module("first", torch::nn::Linear(4, 4)); }
  torch::Tensor forward(const torch::Tensor& input) {
    const auto hidden = first(input.to(first->weight.scalar_type()));
    return second ? second(hidden) : hidden;
  }
  torch::nn::Linear first = nullptr;
  torch::nn::Linear second = nullptr;
};
TORCH_MODULE(Stack);

void change(Stack& model, const std::string& how) {
  if (how == "loaded") {
    std::stringstream file;
    torch::save(model, file);
    torch::load(model, file);
  } else if (how == "converted") {
    model->to(torch::kDouble);
  } else if (how == "extended") {
    model->second = model->register_module("second", torch::nn::Linear(4, 4));
  } else if (how == "frozen") {
    model->first->bias.set_requires_grad(false);
  }
}

}  // namespace

int main(int argc, char** argv) {
  lockstep::World world(argc, argv);
  const std::string how = argc > 1 ? argv[1] : "";
  const int wrong = argc > 2 ? std::atoi(argv[2]) : 0;
  const bool by_ranks = argc > 3 && std::string(argv[3]) == "ranks";
  Stack model;
  lockstep::DistributedDataParallelOptions options;
  options.find_unused_parameters = argc > 4;
  lockstep::DistributedDataParallel ddp(model, world, options);
  for (int step = 0; step < 6; ++step) {
    if (step == 3 && world.rank() == wrong) change(model, how);
    const auto loss = ddp(torch::ones({2, 4})).sum();
    if (by_ranks) {
      loss.backward();
    } else {
      ddp.backward(loss, 2);
    }
    model->zero_grad();
  }
  return 0;
}
