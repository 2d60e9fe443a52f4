// A program that uses an installed Lockstep only: it trains a model with DDP on a pack of tokens.

#include <runtime/data/loader.h>
#include <runtime/lockstep.h>
#include <staging/pack/reader.h>
#include <torch/torch.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto pack = lockstep::pack::open(argv[1]);
  lockstep::World world(argc, argv);
  auto model = torch::nn::Embedding(256, 256);
  torch::nn::init::zeros_(model->weight);
  lockstep::DistributedDataParallel<torch::nn::EmbeddingImpl> ddp(model, world);
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  lockstep::data::Loader loader(*pack, {.cap = 64}, world);

  double first = -1;
  double last = -1;
  for (auto epoch = loader.epoch(); epoch < 20; ++epoch) {
    loader.set_epoch(epoch);
    for (const auto& batch : loader) {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);
      if (batch.empty) {
        ddp.skip();
      } else {
        // Each token predicts itself, so the loss decreases only if the model learns.
        const auto loss = torch::nn::functional::cross_entropy(
            ddp(batch.tokens), batch.tokens,
            torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
        ddp.backward(loss, batch.tokens.size(0));
        last = loss.item<double>() / static_cast<double>(batch.tokens.size(0));
        if (first < 0) first = last;
      }
      if (!batch.last_of_step) continue;
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  std::printf("loss %.3f -> %.3f\n", first, last);
  return last < first ? 0 : 1;
}
