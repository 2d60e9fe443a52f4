// digits_cnn: trains a small convolutional network to read handwritten digits, on all ranks that the launcher
// starts. It shows what a network on pictures needs: batches of pictures, batch norm under DDP, the memory
// format channels_last, and bfloat16.

#include <torch/torch.h>

#include "examples/digits_cnn/digits.h"
#include "examples/shared.h"
#include "runtime/lockstep.h"

namespace lockstep::digits {
namespace {

struct CnnOptions : Options {
  bool sync_batch_norm = false;
};

torch::nn::Sequential make_model() {
  torch::nn::Sequential model;
  std::int64_t from = 1;
  for (const std::int64_t to : {16, 16, 32, 32}) {
    // Batch norm subtracts the mean, so a bias in front of it would have no effect.
    model->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false)));
    model->push_back(torch::nn::BatchNorm2d(to));
    model->push_back(torch::nn::ReLU());
    from = to;
  }
  model->push_back(torch::nn::MaxPool2d(2));
  model->push_back(torch::nn::Flatten());
  model->push_back(torch::nn::Linear(from * 4 * 4, 10));
  return model;
}

int run(const CnnOptions& options, int argc, char** argv) {
  World world(argc, argv);
  // All pictures have one size, so on a GPU cuDNN measures its algorithms once, and takes the fastest.
  apply_settings(world, {.cudnn_benchmark = true});
  const Seeds seeds(options.seed);
  seeds.seed_model();
  Data data;
  if (!done_on_all_ranks(world, "digits_cnn", "opening the data", [&] { data = open_data(options, world); }))
    return 1;
  auto model = make_model();
  seeds.seed_rank(world);
  if (options.sync_batch_norm) convert_sync_batch_norm(world, *model);
  model->to(data.device);
  to_channels_last(*model);
  DistributedDataParallel ddp(model, world, {.check_model = true});
  const auto network = [&](const torch::Tensor& pixels) { return ddp(pixels); };
  print(train(network, *model, ddp, data, options, world), data, options, world);
  return 0;
}

}  // namespace
}  // namespace lockstep::digits

int main(int argc, char** argv) {
  lockstep::digits::CnnOptions options;
  const auto add_options = [&](CLI::App& app) {
    app.add_flag("--sync-batch-norm", options.sync_batch_norm,
                 "Batch norm with the statistics of all ranks' batches");
  };
  const auto exit_code =
      parse(options, "digits_cnn",
            "Train a network to read handwritten digits, on as many ranks as the launcher starts.",
            add_options, argc, argv);
  return exit_code ? *exit_code : lockstep::digits::run(options, argc, argv);
}
