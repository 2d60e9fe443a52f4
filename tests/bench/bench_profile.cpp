// Measures what an operator of LibTorch costs while steps are profiled: a product of two scalars in a forward, which
// belongs to a module and makes a node of backward, with and without a profile. Prints
// {"bench":"profile","operator_ns":…,"profiled_ns":…,"cost_ns":…}, medians over rounds.

#include <torch/torch.h>

#include <functional>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "runtime/profile/operators.h"
#include "runtime/profile/spans.h"

namespace lockstep {
namespace {

constexpr int kCalls = 1000;

double median_ns(int rounds, const std::function<void()>& round) {
  std::vector<double> times;
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t begin = monotonic_ns();
    round();
    times.push_back(static_cast<double>(monotonic_ns() - begin) / kCalls);
  }
  return median(std::move(times));
}

void run(int rounds) {
  torch::nn::Sequential model(torch::nn::Linear(1, 1));
  const torch::Tensor weight = model->parameters().front();
  const auto forward = [&] {
    for (int i = 0; i < kCalls; ++i) (void)weight.mul(weight);
  };
  const double plain = median_ns(rounds, forward);
  profile::add_model(*model);
  profile::trace_operators(true);
  const double profiled = median_ns(rounds, [&] {
    profile::start_spans();
    forward();
    profile::stop_spans();
  });
  profile::trace_operators(false);
  profile::remove_model(*model);
  Tool::print({{"bench", "profile"},
               {"operator_ns", plain},
               {"profiled_ns", profiled},
               {"cost_ns", profiled - plain}});
}

}  // namespace
}  // namespace lockstep

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_profile", "Measures what an operator costs while steps are profiled.");
  int rounds = 1000;
  tool.app()
      .add_option("--rounds", rounds, "rounds of 1,000 operators, with and without a profile")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return tool.run(argc, argv, [&] { lockstep::run(rounds); });
}
