// The loop that README prints, with our loader and with batches of the program's own.
#include <torch/torch.h>

#include <stdexcept>
#include <string_view>
#include <vector>

#include "runtime/data/loader.h"
#include "runtime/lockstep.h"
#include "staging/pack/reader.h"

namespace {

struct PredictImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& tokens) { return linear(embedding(tokens)); }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(256, 16));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(16, 256));
};
TORCH_MODULE(Predict);

struct OwnBatch {
  torch::Tensor tokens;
  std::int64_t loss_tokens = 0;
  bool last_of_step = false;
  bool empty = false;
};

template <typename Batch>
torch::Tensor loss_sum(const torch::Tensor& logits, const Batch& batch) {
  return torch::cross_entropy_loss(logits, batch.tokens, {}, torch::Reduction::Sum);
}

void with_loader(int argc, char** argv) {
  Predict model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  const auto reader = lockstep::pack::open(argv[2]);
  const auto& pack = *reader;
  lockstep::data::PlanOptions plan;
  plan.cap = 64;
  plan.accumulate = 2;
#include "readme_loop.inc"
}

// 3 steps of 2 micro-batches with 10 tokens.
void with_own_batches(int argc, char** argv) {
  Predict model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  std::vector<OwnBatch> loader;
  for (int i = 0; i < 6; ++i) loader.push_back({torch::arange(10), 10, i % 2 == 1, false});
#include "readme_loop_own.inc"
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string_view(argv[1]) == "loader") {
    with_loader(argc, argv);
  } else if (argc == 2 && std::string_view(argv[1]) == "own") {
    with_own_batches(argc, argv);
  } else {
    throw std::invalid_argument("usage: readme_loop loader PACK | own");
  }
}
