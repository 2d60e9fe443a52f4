// Times a step of the fused optimizers beside LibTorch's. Both take turns on the same parameters and gradients. One line
// per optimizer and implementation: {"bench":"optimizer","implementation":…,"optimizer":…,"parameters":…,"tensors":…,
// "milliseconds":…}, medians over rounds.

#include <torch/torch.h>

#include <algorithm>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "runtime/comm/process_settings.h"
#include "runtime/train/fused_optimizer.h"

namespace lockstep {
namespace {

struct Settings {
  std::int64_t parameters = 20'000'000;
  int tensors = 100;
  int rounds = 15;
  bool quick = false;
};

std::vector<torch::Tensor> make_parameters(const Settings& settings) {
  std::vector<torch::Tensor> parameters;
  for (int i = 0; i < settings.tensors; ++i) {
    parameters.push_back(torch::randn({settings.parameters / settings.tensors}).requires_grad_());
    parameters.back().mutable_grad() = torch::randn_like(parameters.back());
  }
  return parameters;
}

double milliseconds_of_step(torch::optim::Optimizer& optimizer) {
  const std::uint64_t begin = monotonic_ns();
  optimizer.step();
  return static_cast<double>(monotonic_ns() - begin) / 1e6;
}

void report(const Settings& settings, const char* implementation, const char* optimizer,
            double milliseconds) {
  Tool::print({{"bench", "optimizer"},
               {"implementation", implementation},
               {"optimizer", optimizer},
               {"parameters", settings.parameters},
               {"tensors", settings.tensors},
               {"milliseconds", milliseconds}});
}

template <typename Fused, typename LibTorch, typename Options>
void compare(const Settings& settings, const char* name, const Options& options) {
  Fused fused(make_parameters(settings), options);
  LibTorch libtorch(make_parameters(settings), options);
  std::vector<double> ours;
  std::vector<double> theirs;
  for (int round = 0; round <= settings.rounds; ++round) {
    const double mine = milliseconds_of_step(fused);
    const double other = milliseconds_of_step(libtorch);
    if (round == 0) continue;  // makes the state
    ours.push_back(mine);
    theirs.push_back(other);
  }
  report(settings, "lockstep", name, median(ours));
  report(settings, "libtorch", name, median(theirs));
}

void run(Settings settings) {
  if (settings.quick) {
    settings.parameters = 100'000;
    settings.rounds = 3;
  }
  if (settings.tensors < 1 || settings.parameters < settings.tensors || settings.rounds < 1)
    fail_usage("--parameters must be at least --tensors, and --tensors and --rounds at least 1");
  comm::keep_heap();  // as World does, for both
  compare<FusedAdamW, torch::optim::AdamW>(settings, "adamw",
                                           torch::optim::AdamWOptions(1e-4).weight_decay(0.1));
  compare<FusedAdam, torch::optim::Adam>(settings, "adam", torch::optim::AdamOptions(1e-4));
  compare<FusedSGD, torch::optim::SGD>(settings, "sgd", torch::optim::SGDOptions(1e-4).momentum(0.9));
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_optimizer", "Times a step of the fused optimizers beside LibTorch's.");
  lockstep::Settings settings;
  tool.app().add_option("--parameters", settings.parameters, "In all (default 20 000 000)");
  tool.app().add_option("--tensors", settings.tensors, "That they are divided into (default 100)");
  tool.app().add_option("--rounds", settings.rounds, "Steps of each implementation, in turn (default 15)");
  tool.app().add_flag("--quick", settings.quick, "A short run, to see that it works");
  return tool.run(argc, argv, [&] { lockstep::run(settings); });
}
