// A first training program with the mistake that is named on the command line: mistaken_job MISTAKE PACK. mistakes_test
// starts it.
#include <torch/torch.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "runtime/data/loader.h"
#include "runtime/lockstep.h"
#include "staging/pack/reader.h"

namespace {

struct PredictImpl : torch::nn::Module {
  explicit PredictImpl(bool with_unused) {
    if (with_unused) register_module("unused", torch::nn::Linear(16, 16));
  }
  torch::Tensor forward(const torch::Tensor& tokens) { return linear(embedding(tokens)); }
  torch::nn::Embedding embedding = register_module("embedding", torch::nn::Embedding(256, 16));
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(16, 256));
};
TORCH_MODULE(Predict);

void train(lockstep::World& world, const std::string& mistake, const lockstep::pack::Reader& pack) {
  const bool last_rank = world.rank() == world.size() - 1;
  lockstep::data::Loader loader(pack, {.cap = 64, .accumulate = 2}, world);
  const Predict model(mistake == "unused-parameter");
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  for (int epoch = 0; epoch < 2; ++epoch) {
    if (mistake != "no-set-epoch") loader.set_epoch(static_cast<std::uint64_t>(epoch));
    for (const auto& batch : loader) {
      const bool last = batch.last_of_step || mistake == "no-last-of-step";
      const auto hold = ddp.no_sync_unless(last && mistake != "no-exchange");
      const auto loss = torch::cross_entropy_loss(ddp(batch.tokens), batch.tokens, {}, torch::Reduction::Sum);
      if (last_rank && mistake == "both-averages") {
        loss.backward();
      } else {
        ddp.backward(loss, batch.loss_tokens);
      }
      if (!last) continue;
      optimizer.step();
      optimizer.zero_grad();
      if (last_rank && mistake == "fewer-steps") return;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) throw std::invalid_argument("usage: mistaken_job MISTAKE PACK");
  lockstep::World world(argc, argv);
  const auto pack = lockstep::pack::open(argv[2]);
  train(world, argv[1], *pack);
}
