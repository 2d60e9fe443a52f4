// Measures the time that a checkpoint takes from training: how long Checkpointer::save() blocks, beside a
// training step. The model is bench_ddp's Transformer with an output layer, 20 M parameters, with FusedAdamW.
// Steps alone, save() and steps during which the checkpoint is written are measured in turn; the medians are
// printed. Several ranks: start it under mpirun; milliseconds are those of the slowest rank. Then load_latest() is
// measured: its time, and the memory that it needs beside the model's and the optimizer's. --resume is the start of another
// training in the folder: the CPU time of load_latest(), of the first step and of a later one, and the memory.
#include <torch/torch.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/statistics.h"
#include "common/tool.h"
#include "runtime/lockstep.h"
#include "tests/bench/transformer.h"

namespace lockstep::bench {
namespace {

struct Plan {
  std::string folder;
  std::string tokens = "4x128";
  int checkpoints = 7;
  int steps = 3;  // measured before each checkpoint
  bool distributed = false;
  bool resume = false;
};

struct ModelImpl : torch::nn::Module {
  ModelImpl() {
    body = register_module("body", Transformer());
    head = register_module("head", torch::nn::Linear(kWidth, 2048));
  }
  torch::Tensor forward(const torch::Tensor& inputs) { return head(body(inputs)); }

  Transformer body{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Model);

double milliseconds(World& world, const std::function<void()>& work) {
  world.communicator().barrier("before a measurement")->wait();
  const std::uint64_t begin = monotonic_ns();
  work();
  double time = 1e3 * seconds_between(begin, monotonic_ns());
  world.communicator()
      .all_reduce({&time, 1, comm::DataType::f64}, "a time", {.op = comm::ReduceOp::max})
      ->wait();
  return time;
}

// A line of /proc/self/status in MB: VmRSS, or VmHWM, the largest since reset_peak().
double memory_mb(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(name + ":"))
      return 1.024e-3 * static_cast<double>(std::stoll(line.substr(name.size() + 1)));
  }
  fail("/proc/self/status has no {}", name);
}

void reset_peak() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

double largest(World& world, double value) {
  world.communicator()
      .all_reduce({&value, 1, comm::DataType::f64}, "a rank's memory", {.op = comm::ReduceOp::max})
      ->wait();
  return value;
}

double cpu_seconds() {
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

// CPU seconds of all threads of all ranks.
double cpu_of_all(World& world, const std::function<void()>& work) {
  world.communicator().barrier("before a measurement")->wait();
  const double begin = cpu_seconds();
  work();
  double used = cpu_seconds() - begin;
  world.communicator().all_reduce({&used, 1, comm::DataType::f64}, "CPU time")->wait();
  return used;
}

void resume(World& world, Checkpointer& checkpointer, const std::function<void()>& step) {
  const double load = cpu_of_all(world, [&] {
    if (!checkpointer.load_latest()) fail_usage("--resume: the folder has no checkpoint");
  });
  const double first = cpu_of_all(world, step);
  const double later = cpu_of_all(world, step);
  const double memory = largest(world, memory_mb("VmHWM"));
  if (world.rank() != 0) return;
  Tool::print({{"bench", "resume"},
               {"ranks", world.size()},
               {"load_cpu_seconds", load},
               {"first_step_cpu_seconds", first},
               {"later_step_cpu_seconds", later},
               {"rank_mb", memory}});
}

template <typename Optimizer>
void measure(World& world, const Plan& plan, Model& model, DistributedDataParallel<ModelImpl>& ddp,
             Optimizer& optimizer) {
  int sequences = 0;
  int length = 0;
  if (std::sscanf(plan.tokens.c_str(), "%dx%d", &sequences, &length) != 2 || sequences < 1 || length < 1)
    fail_usage("--tokens {} is not like 4x128 (sequences x length)", plan.tokens);
  const auto inputs = torch::randn({sequences, length, kWidth});
  const auto step = [&] {
    ddp.backward(ddp(inputs).square().sum(), sequences * length);
    optimizer.step();
    optimizer.zero_grad();
  };
  Checkpointer checkpointer(world, plan.folder, {.keep = 1});
  checkpointer.add("model", *model);
  checkpointer.add("optimizer", optimizer);
  if (plan.resume) return resume(world, checkpointer, step);

  std::vector<double> alone;
  std::vector<double> blocked;
  std::vector<double> during;
  std::vector<double> written;
  double first = 0;
  step();
  for (int i = 0; i <= plan.checkpoints; ++i) {
    for (int s = 0; s < plan.steps; ++s) alone.push_back(milliseconds(world, step));
    const std::uint64_t begin = monotonic_ns();
    const double save = milliseconds(world, [&] { checkpointer.save(i + 1); });
    const double next = milliseconds(world, step);
    checkpointer.wait();
    if (i == 0) {
      first = save;  // its memory is new
      continue;
    }
    blocked.push_back(save);
    during.push_back(next);
    written.push_back(1e3 * seconds_between(begin, monotonic_ns()));
  }
  reset_peak();
  const double before_mb = memory_mb("VmRSS");
  const double load = milliseconds(world, [&] { checkpointer.load_latest(); });
  const double load_mb = largest(world, memory_mb("VmHWM") - before_mb);
  const double kept_mb = largest(world, memory_mb("VmRSS") - before_mb);
  if (world.rank() != 0) return;
  double largest_file_mb = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(plan.folder))
    if (file.is_regular_file())
      largest_file_mb = std::max(largest_file_mb, 1e-6 * static_cast<double>(file.file_size()));
  std::int64_t parameters = 0;
  for (const auto& parameter : model->parameters()) parameters += parameter.numel();
  const double share = median(blocked) / median(alone);
  Tool::print({{"bench", "checkpoint"},
               {"parameters", parameters},
               {"ranks", world.size()},
               {"tokens", sequences * length},
               {"checkpoints", plan.checkpoints},
               {"step_ms", median(alone)},
               {"save_ms", median(blocked)},
               {"first_save_ms", first},
               {"share_of_a_step", share},
               {"step_during_write_ms", median(during)},
               {"written_ms", median(written)},
               {"load_ms", load},
               {"load_peak_mb", load_mb},
               {"load_kept_mb", kept_mb},
               {"largest_file_mb", largest_file_mb},
               {"torch", TORCH_VERSION},
               {"threads", at::get_num_threads()}});
}

void run(World& world, const Plan& plan) {
  Model model;
  DistributedDataParallel ddp(model, world);
  const torch::optim::AdamWOptions options(1e-4);
  if (plan.distributed) {
    DistributedOptimizer<FusedAdamW> optimizer(ddp, options);
    return measure(world, plan, model, ddp, optimizer);
  }
  FusedAdamW optimizer(model->parameters(), options);
  measure(world, plan, model, ddp, optimizer);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  using namespace lockstep;
  World world(argc, argv);
  bench::Plan plan;
  bool quick = false;
  Tool tool("bench_checkpoint", "Measure what a checkpoint takes from training.");
  tool.app().add_option("--folder", plan.folder,
                        "Where the checkpoints are written (default: a temporary folder)");
  tool.app().add_option("--tokens", plan.tokens, "Sequences x length of a step")->capture_default_str();
  tool.app()
      .add_option("--checkpoints", plan.checkpoints, "How many are measured")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  tool.app()
      .add_option("--steps", plan.steps, "Steps that are measured before each checkpoint")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  tool.app().add_flag("--distributed", plan.distributed, "Use a DistributedOptimizer");
  tool.app().add_flag("--resume", plan.resume, "Measure the start from the checkpoint in --folder");
  tool.app().add_flag("--quick", quick, "One checkpoint of small steps, to see that it works");
  return tool.run(argc, argv, [&] {
    if (quick) {
      plan.checkpoints = 1;
      plan.steps = 1;
      plan.tokens = "1x32";
    }
    const bool temporary = plan.folder.empty();
    if (temporary)
      plan.folder = (std::filesystem::temp_directory_path() / "lockstep-bench-checkpoint").string();
    if (temporary && world.rank() == 0) std::filesystem::remove_all(plan.folder);
    bench::run(world, plan);
    if (temporary && world.rank() == 0) std::filesystem::remove_all(plan.folder);
  });
}
