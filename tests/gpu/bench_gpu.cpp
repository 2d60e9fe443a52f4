// Times the training step of a GPT with 124 M parameters in bfloat16 (autocast) on one GPU: the bare module, with
// DistributedDataParallel, and with the loader too. A step is forward, backward and zero_grad; the optimizer's step is
// the same in all of them. bench_gpu_peer.py does the same with PyTorch's own DistributedDataParallel.
//
// One line for each mode: {"bench":"gpu","device":…,"torch":…,"implementation":"lockstep","mode":…,"parameters":…,
// "type":…,"milliseconds":…,"peak_share":…,"peak_tflops":…,"loss":…}. `mode` is bare, ddp or loader (as ddp, with batches from the
// loader). `milliseconds` is the median over blocks, which the modes measure in turn. `peak_share` is the rate of the
// model's operations divided by `peak_tflops`, the rate of a large matrix product of the same type, measured here.

#include <fmt/format.h>
#include <torch/torch.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/create.h"
#include "tests/gpu/gpt.h"

namespace lockstep::bench {
namespace {

struct Settings {
  std::string device = "cuda";
  std::string name = "?";
  std::int64_t batch = 16;
  int blocks = 5;
  int steps = 20;
  int warm_up = 5;
  std::int64_t product = 8192;  // width of the matrices that measure the peak
  bool quick = false;
  GptOptions model;
};

void synchronise(torch::Device device) {
  if (device.is_cuda()) torch::cuda::synchronize(device.index());
}

double seconds_of(torch::Device device, int times, const std::function<void()>& work) {
  synchronise(device);
  const std::uint64_t begin = monotonic_ns();
  for (int i = 0; i < times; ++i) work();
  synchronise(device);
  return seconds_between(begin, monotonic_ns()) / times;
}

/// Operations per second of a large matrix product in bfloat16.
double measure_peak(torch::Device device, std::int64_t width) {
  const auto options = torch::TensorOptions(device).dtype(torch::kBFloat16);
  const auto a = torch::randn({width, width}, options);
  const auto b = torch::randn({width, width}, options);
  const auto product = [&] { torch::mm(a, b); };
  seconds_of(device, 3, product);
  return 2.0 * static_cast<double>(width * width * width) / seconds_of(device, 10, product);
}

std::int64_t parameters_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

/// Operations of forward and backward for one token (as PaLM, appendix B, counts them).
double operations_per_token(const Gpt& gpt, const GptOptions& model) {
  const auto weights = parameters_of(*gpt) - gpt->positions->weight.numel();
  return static_cast<double>(6 * weights + 12 * model.layers * model.width * model.context);
}

/// A pack of random rows, each as long as the model's context.
class Rows {
 public:
  Rows(const GptOptions& model, std::int64_t count) {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("lockstep-bench-gpu-{}", ::getpid());
    std::filesystem::create_directories(folder_ / "rows");
    pack::CreateOptions options;
    options.folder = folder_ / "rows";
    options.out = folder_ / "pack";
    options.token_bytes = 2;
    const auto tokens = torch::randint(model.vocabulary, {count, model.context}, torch::kInt64);
    for (std::int64_t i = 0; i < count; ++i) {
      std::vector<std::uint16_t> row(static_cast<std::size_t>(model.context));
      std::copy_n(tokens[i].data_ptr<std::int64_t>(), model.context, row.begin());
      options.files.push_back(fmt::format("{:06}.tok", i));
      std::ofstream(options.folder / options.files.back(), std::ios::binary)
          .write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(2 * row.size()));
    }
    pack::create(options);
    reader_ = pack::open(options.out);
  }
  ~Rows() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  const pack::Reader& reader() const { return *reader_; }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<pack::Reader> reader_;
};

/// Batches of the loader, epoch after epoch.
class Batches {
 public:
  Batches(data::Loader& loader, std::size_t rows) : loader_(loader), rows_(rows) {}

  torch::Tensor next() {
    if (!position_) {
      position_.emplace(loader_.begin());
    } else {
      ++*position_;
    }
    while (*position_ == data::Loader::End{}) {
      loader_.set_epoch(loader_.epoch() + 1);
      position_.emplace(loader_.begin());
    }
    const torch::Tensor& tokens = (**position_).tokens;
    if (static_cast<std::size_t>(tokens.size(0)) != rows_)
      fail("the loader made a batch of {} rows instead of {}", tokens.size(0), rows_);
    return tokens;
  }

 private:
  data::Loader& loader_;
  std::size_t rows_;
  std::optional<data::Loader::Iterator> position_;
};

struct Mode {
  std::string name;
  std::function<torch::Tensor()> step;  // returns the loss
  std::vector<double> milliseconds = {};
  double loss = 0;
};

void report(const Settings& settings, const Mode& mode, std::int64_t parameters, double operations,
            double peak) {
  const double milliseconds = median(mode.milliseconds);
  const double share = operations / (milliseconds / 1e3) / peak;
  Tool::print({{"bench", "gpu"},
               {"device", settings.name},
               {"torch", TORCH_VERSION},
               {"implementation", "lockstep"},
               {"mode", mode.name},
               {"parameters", parameters},
               {"type", "bfloat16"},
               {"milliseconds", milliseconds},
               {"peak_share", share},
               {"peak_tflops", peak / 1e12},
               {"loss", mode.loss}});
}

void run(Settings settings, World& world) {
  const bool cuda = settings.device == "cuda";
  if (cuda && !torch::cuda::is_available())
    fail_usage("--device cuda: LibTorch {} finds no CUDA device", TORCH_VERSION);
  const torch::Device device = cuda ? torch::Device(torch::kCUDA, 0) : torch::Device(torch::kCPU);
  if (settings.quick) {
    settings.model = {.vocabulary = 512, .context = 64, .width = 64, .heads = 4, .layers = 2};
    settings.batch = 4;
    settings.blocks = 3;
    settings.steps = 3;
    settings.warm_up = 1;
    settings.product = 256;
  }
  torch::manual_seed(1);
  const double peak = measure_peak(device, settings.product);
  Gpt alone(settings.model);
  alone->to(device);
  Gpt wrapped(settings.model);
  wrapped->to(device);
  DistributedDataParallel ddp(wrapped, world);
  const auto fixed =
      torch::randint(settings.model.vocabulary, {settings.batch, settings.model.context}, torch::kInt64)
          .to(device);
  const std::int64_t tokens = fixed.numel();
  const Rows rows(settings.model, 20 * settings.batch);
  const auto cap = static_cast<std::uint64_t>(tokens);
  data::Loader loader(rows.reader(), {.cap = cap, .step_tokens = cap, .padded = true}, world,
                      {.device = device});
  Batches batches(loader, static_cast<std::size_t>(settings.batch));

  const auto ddp_step = [&](const torch::Tensor& batch) {
    wrapped->zero_grad();
    torch::Tensor loss;
    {
      const Autocast autocast(device.type());
      loss = ddp(batch);
    }
    ddp.backward(loss * static_cast<double>(tokens), tokens);
    return loss;
  };
  std::vector<Mode> modes = {{.name = "bare",
                              .step =
                                  [&] {
                                    alone->zero_grad();
                                    torch::Tensor loss;
                                    {
                                      const Autocast autocast(device.type());
                                      loss = alone(fixed);
                                    }
                                    loss.backward();
                                    return loss;
                                  }},
                             {.name = "ddp", .step = [&] { return ddp_step(fixed); }},
                             {.name = "loader", .step = [&] { return ddp_step(batches.next()); }}};
  for (int block = 0; block <= settings.blocks; ++block) {
    for (Mode& mode : modes) {
      torch::Tensor loss;
      const int steps = block == 0 ? settings.warm_up : settings.steps;
      const double seconds = seconds_of(device, steps, [&] { loss = mode.step(); });
      if (block == 0) continue;
      mode.milliseconds.push_back(1e3 * seconds);
      mode.loss = loss.item<double>();
    }
  }
  const double operations = operations_per_token(alone, settings.model) * static_cast<double>(tokens);
  for (const Mode& mode : modes) report(settings, mode, parameters_of(*alone), operations, peak);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_gpu", "Times a GPT's training step with and without DistributedDataParallel.");
  lockstep::bench::Settings settings;
  tool.app()
      .add_option("--device", settings.device, "cuda (default) or cpu")
      ->check(CLI::IsMember({"cuda", "cpu"}));
  tool.app().add_option("--name", settings.name, "Of the device, for the lines");
  tool.app()
      .add_option("--batch", settings.batch, "Sequences of a step (default 16)")
      ->check(CLI::PositiveNumber);
  tool.app().add_option("--blocks", settings.blocks, "Of each mode (default 5)")->check(CLI::PositiveNumber);
  tool.app().add_option("--steps", settings.steps, "Of a block (default 20)")->check(CLI::PositiveNumber);
  tool.app().add_flag("--quick", settings.quick, "A tiny model, to see that it works");
  return tool.run(argc, argv, [&] {
    lockstep::World world(argc, argv);
    lockstep::bench::run(settings, world);
  });
}
