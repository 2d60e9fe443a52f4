#include "examples/digits_cnn/digits.h"

#include <fmt/format.h>

#include "common/clock.h"
#include "common/tool.h"
#include "common/units.h"
#include "examples/shared.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"

namespace lockstep::digits {
namespace {

data::ImageOptions picture_options() {
  return {.size = {.height = 8, .width = 8}, .channels = 1};
}

std::uint64_t step_pictures(const Options& options, const World& world) {
  return options.batch * static_cast<std::uint64_t>(world.size());
}

// Every step has one batch for each rank, as batch norm over all ranks needs: a last step of fewer pictures than
// ranks is left out, and no step takes more pictures than the others.
std::unique_ptr<data::Loader> make_loader(const Data& data, const Options& options, World& world) {
  const data::PlanOptions plan{
      .cap = options.batch,
      .step_tokens = step_pictures(options, world),
      .step_stretch = 1,
      .seed = Seeds(options.seed).data(),
      .tail = data::Tail::drop,
  };
  return std::make_unique<data::Loader>(
      *data.training, plan, world, data::LoaderOptions{.device = data.device, .images = picture_options()});
}

torch::Tensor pixels_of(const data::Batch& batch) {
  return data::normalise_images(batch.images, {.mean = {0.5}, .deviation = {0.5}});
}

// The held-out pictures are divided among the ranks.
double accuracy(const Network& network, torch::nn::Module& module, const Data& data, World& world) {
  Validation validation(world, module);
  // Without the world's timer, since this is not part of a training step.
  data::Loader loader(*data.heldout, {.ranks = world.size(), .cap = 128, .order = data::Order::sequential},
                      world.rank(), nullptr,
                      {.device = data.device, .next_epoch_ahead = false, .images = picture_options()});
  for (const auto& batch : loader) {
    if (!batch.empty) validation.add_classes(network(pixels_of(batch)), batch.labels);
  }
  return validation.result().accuracy.value_or(0);
}

}  // namespace

std::optional<int> parse(Options& options, const std::string& program, const std::string& summary,
                         const std::function<void(CLI::App&)>& more, int argc, char** argv) {
  options.data = staged("digits");
  options.heldout = staged("digits-heldout");
  bool parsed = false;
  Tool tool(program, summary);
  CLI::App& app = tool.app();
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "Packed pictures to train on (default: $LOCKSTEP_DATA/digits)");
  app.add_option("--heldout", options.heldout,
                 "Packed pictures to measure on (default: $LOCKSTEP_DATA/digits-heldout)");
  app.add_option("--device", options.device,
                 "Where to compute: cpu, cuda, or auto: a CUDA device if there is one")
      ->check(CLI::IsMember({"cpu", "cuda", "auto"}));
  app.add_option("--batch", options.batch, "Pictures of each rank in a step")->check(CLI::PositiveNumber);
  app.add_option("--epochs", options.epochs, "Train this many times on all pictures")
      ->check(CLI::PositiveNumber);
  app.add_option("--lr", options.learning_rate, "Maximum learning rate")->check(CLI::PositiveNumber);
  app.add_option("--clip", options.clip, "Maximum norm of the gradients")->check(CLI::PositiveNumber);
  app.add_flag("--bf16", options.bf16, "Compute in bfloat16 where that is precise enough");
  app.add_option("--seed", options.seed, "Seed of the parameters and of the order of the pictures");
  app.add_option(
      "--checkpoint", options.checkpoint,
      "Folder of checkpoints, shared by all nodes: resume from the newest, and save after each epoch");
  more(app);
  const int code = tool.run(argc, argv, [&] { parsed = true; });
  options.json = tool.json();
  if (parsed) return std::nullopt;
  return code;
}

Data open_data(const Options& options, const World& world) {
  return {open_pack(options.data, "--data"), open_pack(options.heldout, "--heldout"),
          choose_device(options.device, world)};
}

Result train(const Network& forward, torch::nn::Module& module, DistributedDataParallelBase& ddp,
             const Data& data, const Options& options, World& world) {
  const Network network = [&](const torch::Tensor& pixels) {
    const Autocast autocast(data.device.type(), torch::kBFloat16, options.bf16);
    return forward(pixels).to(torch::kFloat);
  };
  Result result;
  result.accuracy_before = accuracy(network, module, data, world);
  const auto loader = make_loader(data, options, world);
  FusedAdamW optimizer(
      decay_groups(module, torch::optim::AdamWOptions(options.learning_rate).weight_decay(0.05)));
  const std::uint64_t pictures = step_pictures(options, world);
  const std::uint64_t steps = options.epochs * ((data.training->size() + pictures - 1) / pictures);
  LearningRate learning_rate(optimizer, schedule::one_cycle(static_cast<std::int64_t>(steps)));
  std::optional<Checkpointer> checkpointer;
  if (!options.checkpoint.empty()) {
    checkpointer.emplace(world, options.checkpoint);
    checkpointer->add("model", module);
    checkpointer->add("optimizer", optimizer);
    checkpointer->add("learning_rate", learning_rate);
    checkpointer->add("loader", *loader);
    result.steps = checkpointer->load_latest().value_or(0);
  }

  const std::uint64_t begin = monotonic_ns();
  // The sums stay on the device: reading them in every step would make the CPU wait for a GPU.
  const auto losses = torch::zeros(2, torch::TensorOptions(torch::kDouble).device(data.device));
  for (auto epoch = loader->epoch(); epoch < options.epochs; ++epoch) {
    loader->set_epoch(epoch);
    losses.zero_();
    for (const auto& batch : *loader) {
      const auto hold = ddp.no_sync_unless(batch.last_of_step);
      const auto loss = torch::nn::functional::cross_entropy(
          network(pixels_of(batch)), batch.labels,
          torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
      ddp.backward(loss, batch.loss_tokens);
      losses[0] += loss.detach();
      losses[1] += batch.loss_tokens;
      if (!batch.last_of_step) continue;
      const auto scope = world.timer().phase(profile::Phase::optimizer);
      clip_grad_norm(optimizer, options.clip);
      optimizer.step();
      optimizer.zero_grad();
      learning_rate.step();
      ++result.steps;
    }
    if (checkpointer) checkpointer->save(result.steps);
  }
  if (checkpointer) checkpointer->wait();
  all_reduce(world, losses, ReduceOp::sum, "loss");
  result.loss = (losses[0] / losses[1]).item<double>();
  result.seconds = seconds_between(begin, monotonic_ns());
  // Each rank has the running statistics of its own last batch.
  ddp.broadcast_buffers();
  result.accuracy_after = accuracy(network, module, data, world);
  return result;
}

void print(const Result& result, const Data& data, const Options& options, World& world) {
  if (world.rank() != 0) return;
  if (options.json) {
    Tool::print({{"ranks", world.size()},
                 {"device", data.device.str()},
                 {"accuracy_before", result.accuracy_before},
                 {"accuracy_after", result.accuracy_after},
                 {"loss", result.loss},
                 {"steps", result.steps},
                 {"seconds", result.seconds}});
    return;
  }
  fmt::print("trained {} steps on {} in {}; loss {:.3f}\n", result.steps, data.device.str(),
             format_seconds(result.seconds), result.loss);
  fmt::print("accuracy on {} held-out digits: {:.1f} % -> {:.1f} %\n", data.heldout->size(),
             100 * result.accuracy_before, 100 * result.accuracy_after);
  print_verdict(world);
}

}  // namespace lockstep::digits
