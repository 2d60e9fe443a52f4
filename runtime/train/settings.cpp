#include "runtime/train/settings.h"

#include <ATen/Context.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include <cstdio>

#include "common/environment.h"
#include "common/error.h"
#include "runtime/comm/alike.h"
#include "runtime/comm/process_settings.h"

namespace lockstep {
namespace {

const char* name_of(MatmulPrecision precision) {
  static constexpr const char* kNames[] = {"highest", "high", "medium"};
  return kNames[static_cast<std::size_t>(precision)];
}

const char* on_or_off(bool on) {
  return on ? "on" : "off";
}

void set(const TrainingSettings& settings) {
  auto& context = at::globalContext();
  context.setDeterministicAlgorithms(settings.deterministic, /*warn_only=*/false);
  context.setBenchmarkCuDNN(settings.cudnn_benchmark);
  context.setDeterministicCuDNN(settings.deterministic);
  // Recent versions of LibTorch warn about these two calls, so they are made only if they change something.
  const auto precision = static_cast<at::Float32MatmulPrecision>(settings.matmul_precision);
  if (context.float32MatmulPrecision() != precision)
    context.setFloat32MatmulPrecision(name_of(settings.matmul_precision));
  if (context.allowTF32CuDNN() != settings.cudnn_tf32) context.setAllowTF32CuDNN(settings.cudnn_tf32);
  torch::autograd::AnomalyMode::set_enabled(settings.anomaly_mode);
  if (settings.threads > 0) comm::set_threads(settings.threads);
}

}  // namespace

namespace train {

void check_settings(const TrainingSettings& settings, bool cuda) {
  if (settings.deterministic && settings.cudnn_benchmark) {
    fail_usage(
        "settings: cudnn_benchmark chooses algorithms by speed, which contradicts deterministic; switch one off");
  }
  if (settings.threads < 0) fail_usage("settings: threads is {}; it must not be negative", settings.threads);
  const auto chosen = environment::get_integer("OMP_NUM_THREADS");
  if (settings.threads > 0 && chosen && *chosen != settings.threads) {
    fail_usage("settings: threads is {}, but OMP_NUM_THREADS is {}; set only one of them", settings.threads,
               *chosen);
  }
  const std::string workspace = environment::get_or("CUBLAS_WORKSPACE_CONFIG", "");
  if (cuda && settings.deterministic && workspace != ":4096:8" && workspace != ":16:8") {
    fail_usage(
        "settings: deterministic needs CUBLAS_WORKSPACE_CONFIG=:4096:8 in the job's environment, else LibTorch refuses matrix products on a GPU");
  }
}

std::string describe(const TrainingSettings& settings, bool cuda) {
  std::string text = fmt::format("deterministic algorithms {}, anomaly mode {}",
                                 on_or_off(settings.deterministic), on_or_off(settings.anomaly_mode));
  if (cuda) {
    text += fmt::format(", cuDNN autotuner {}, matmul precision {}, TF32 in convolutions {}",
                        on_or_off(settings.cudnn_benchmark), name_of(settings.matmul_precision),
                        on_or_off(settings.cudnn_tf32));
  }
  if (settings.threads > 0) text += fmt::format(", {} threads", settings.threads);
  return text;
}

std::vector<std::string> slow_settings(const TrainingSettings& settings, int cpus) {
  std::vector<std::string> lines;
  if (settings.anomaly_mode)
    lines.emplace_back("anomaly mode makes each step much slower: switch it off when the error is found");
  if (settings.deterministic)
    lines.emplace_back("deterministic algorithms are slower: switch them off for speed");
  if (settings.threads > cpus) {
    lines.push_back(fmt::format("{} threads share {} CPU{}: set threads to at most {}", settings.threads,
                                cpus, cpus == 1 ? "" : "s", cpus));
  }
  return lines;
}

}  // namespace train

void apply_settings(World& world, const TrainingSettings& settings) {
  const bool cuda = at::hasCUDA();
  comm::check_alike(world.communicator(), "the ranks' settings",
                    {{"setting deterministic", fmt::to_string(settings.deterministic)},
                     {"setting cudnn_benchmark", fmt::to_string(settings.cudnn_benchmark)},
                     {"setting matmul_precision", name_of(settings.matmul_precision)},
                     {"setting cudnn_tf32", fmt::to_string(settings.cudnn_tf32)},
                     {"setting anomaly_mode", fmt::to_string(settings.anomaly_mode)}},
                    "settings", "give all ranks the same settings");
  train::check_settings(settings, cuda);
  set(settings);
  if (world.rank() != 0) return;
  std::string lines = fmt::format("lockstep: {}\n", train::describe(settings, cuda));
  const int cpus = static_cast<int>(comm::find_cpus().compute.size());
  for (const auto& line : train::slow_settings(settings, cpus)) lines += "lockstep: warning: " + line + '\n';
  std::fputs(lines.c_str(), stderr);
}

}  // namespace lockstep
