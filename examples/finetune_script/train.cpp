// finetune_script: continues to train a model that was exported from Python as TorchScript, on all ranks that the launcher
// starts. Nothing here knows the model's layers.

#include <torch/script.h>
#include <torch/torch.h>

#include "common/error.h"
#include "examples/digits_cnn/digits.h"
#include "examples/shared.h"
#include "runtime/lockstep.h"

namespace lockstep::digits {
namespace {

struct ScriptOptions : Options {
  std::string model;
  std::string save;
};

ScriptModule load(const std::string& file, torch::Device device) {
  try {
    return ScriptModule(torch::jit::load(file, device));
  } catch (const c10::Error& error) {
    fail("cannot load the TorchScript model {}: {}", file, error.what_without_backtrace());
  }
}

int run(const ScriptOptions& options, int argc, char** argv) {
  World world(argc, argv);
  Data data;
  ScriptModule model{nullptr};
  const auto open = [&] {
    data = open_data(options, world);
    model = load(options.model, data.device);
  };
  if (!done_on_all_ranks(world, "finetune_script", "opening the data and the model", open)) return 1;
  DistributedDataParallel ddp(model, world, {.check_model = true});
  const auto network = [&](const torch::Tensor& pixels) { return ddp(pixels).toTensor(); };
  print(train(network, *model, ddp, data, options, world), data, options, world);
  if (!options.save.empty() && world.rank() == 0) model->script().save(options.save);
  return 0;
}

}  // namespace
}  // namespace lockstep::digits

int main(int argc, char** argv) {
  lockstep::digits::ScriptOptions options;
  options.epochs = 6;
  const auto add_options = [&](CLI::App& app) {
    app.add_option("--model", options.model, "TorchScript model to start from (prepare.py makes one)")
        ->required();
    app.add_option("--save", options.save, "Write the trained model to this file, as TorchScript");
  };
  const auto exit_code =
      parse(options, "finetune_script",
            "Continue to train a TorchScript model, on as many ranks as the launcher starts.", add_options,
            argc, argv);
  return exit_code ? *exit_code : lockstep::digits::run(options, argc, argv);
}
