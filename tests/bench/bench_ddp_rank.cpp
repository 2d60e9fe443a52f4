// One rank of bench_ddp, which starts it (bench_ddp.py). It measures the training step in turn without
// DistributedDataParallel (bare), with it under no_sync, and with it synchronising; or, instead, what hooks
// cost per parameter, what memory is used beyond parameters and gradients, or when buckets are ready. Rank 0
// prints a JSON object for each measurement, with the milliseconds of the slowest rank.

#include <fmt/format.h>
#include <malloc.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/tool.h"
#include "runtime/comm/process_settings.h"
#include "runtime/ddp/distributed_data_parallel.h"
#include "runtime/ddp/hooks/compression.h"
#include "runtime/ddp/reducer.h"
#include "tests/bench/transformer.h"

namespace lockstep::bench {
namespace {

constexpr const char* kModes[] = {"bare", "no_sync", "sync"};

struct Plan {
  std::vector<std::string> tokens{"4x128", "1x32"};
  int blocks = 3;   // of every mode and size; a smaller step has more steps in a block
  int steps = 2;    // of a block of 512 tokens
  int warm_up = 2;  // steps before the first block
  std::string what = "step";
  std::string compress;  // fp16 or bf16: gradients travel in this type
};

double slowest(World& world, double mine) {
  world.communicator()
      .all_reduce({&mine, 1, comm::DataType::f64}, "a block's time", {.op = comm::ReduceOp::max})
      ->wait();
  return mine;
}

/// Milliseconds per step of the slowest rank.
double time_block(World& world, int steps, const std::function<void()>& step) {
  world.communicator().barrier("before a block")->wait();
  const std::uint64_t begin = monotonic_ns();
  for (int i = 0; i < steps; ++i) step();
  return slowest(world, 1e3 * seconds_between(begin, monotonic_ns()) / steps);
}

void print(const World& world, nlohmann::json line) {
  if (world.rank() != 0) return;
  line["torch"] = TORCH_VERSION;
  line["threads"] = at::get_num_threads();
  line["blas"] = comm::find_blas().name;
  Tool::print(line);
}

std::int64_t elements_of(const torch::nn::Module& module) {
  std::int64_t count = 0;
  for (const auto& parameter : module.parameters()) count += parameter.numel();
  return count;
}

/// One batch of a training loop. The optimizer is left out because it is the same in all modes.
struct Batch {
  torch::Tensor inputs;
  torch::Tensor targets;

  Batch(std::int64_t sequences, std::int64_t length)
      : inputs(torch::randn({sequences, length, kWidth})),
        targets(torch::randn({sequences, length, kWidth})) {}

  void bare_step(Transformer& model) const {
    torch::mse_loss(model(inputs), targets).backward();
    model->zero_grad();
  }

  void step(DistributedDataParallel<TransformerImpl>& ddp) const {
    const auto tokens = inputs.size(0) * inputs.size(1);
    ddp.backward(torch::mse_loss(ddp(inputs), targets) * static_cast<double>(tokens), tokens);
    ddp.module().zero_grad();
  }
};

/// "4x128": sequences and their length.
Batch parse_batch(const std::string& text) {
  int sequences = 0;
  int length = 0;
  if (std::sscanf(text.c_str(), "%dx%d", &sequences, &length) != 2 || sequences < 1 || length < 1) {
    fail_usage("--tokens {} must be SEQUENCESxLENGTH, such as 4x128", text);
  }
  return {sequences, length};
}

void measure_steps(World& world, const Plan& plan) {
  Transformer alone;
  Transformer shared;
  DistributedDataParallel ddp(shared, world);
  if (!plan.compress.empty())
    ddp.register_comm_hook(plan.compress == "fp16" ? fp16_compress_hook() : bf16_compress_hook());
  for (const auto& text : plan.tokens) {
    const Batch batch = parse_batch(text);
    const std::int64_t tokens = batch.inputs.size(0) * batch.inputs.size(1);
    // Blocks of about the same time, however small the step is.
    const int steps = plan.steps * std::clamp<int>(static_cast<int>(512 / tokens) / 4, 1, 8);
    const std::function<void()> step_of[] = {[&] { batch.bare_step(alone); },
                                             [&] {
                                               const auto hold = ddp.no_sync();
                                               batch.step(ddp);
                                             },
                                             [&] { batch.step(ddp); }};
    for (const auto& step : step_of) {
      for (int i = 0; i < plan.warm_up; ++i) step();
    }
    std::vector<double> times[std::size(kModes)];
    for (int block = 0; block < plan.blocks; ++block) {
      for (std::size_t mode = 0; mode < std::size(kModes); ++mode) {
        times[mode].push_back(time_block(world, steps, step_of[mode]));
      }
    }
    for (std::size_t mode = 0; mode < std::size(kModes); ++mode) {
      print(world, {{"mode", kModes[mode]},
                    {"tokens", tokens},
                    {"parameters", elements_of(*shared)},
                    {"steps", steps * plan.blocks},
                    {"blocks", times[mode]}});
    }
  }
}

/// Many parameters, so small that backward does little except call hooks.
struct ManyParametersImpl : torch::nn::Module {
  static constexpr int kCount = 2048;

  ManyParametersImpl() {
    for (int i = 0; i < kCount; ++i) {
      list.push_back(register_parameter(fmt::format("p{}", i), torch::ones({1})));
    }
  }
  torch::Tensor forward() { return torch::cat(list).sum(); }

  std::vector<torch::Tensor> list;
};
TORCH_MODULE(ManyParameters);

void measure_hooks(World& world, const Plan& plan) {
  ManyParameters alone;
  ManyParameters shared;
  DistributedDataParallel ddp(shared, world);
  const std::function<void()> step_of[] = {[&] { alone->forward().backward(); },
                                           [&] {
                                             const auto hold = ddp.no_sync();
                                             ddp.backward(ddp());
                                           },
                                           [&] { ddp.backward(ddp()); }};
  constexpr int kSteps = 20;
  std::vector<double> times[std::size(kModes)];
  for (int block = -1; block < 5 * plan.blocks; ++block) {  // the first is for warming up
    for (std::size_t mode = 0; mode < std::size(kModes); ++mode) {
      alone->zero_grad();
      shared->zero_grad();
      const double milliseconds = time_block(world, kSteps, step_of[mode]);
      if (block >= 0) times[mode].push_back(milliseconds);
    }
  }
  for (std::size_t mode = 0; mode < std::size(kModes); ++mode) {
    print(world,
          {{"mode", kModes[mode]}, {"parameters", ManyParametersImpl::kCount}, {"blocks", times[mode]}});
  }
}

/// This process's memory in bytes; of memory that it shares with others, its share.
std::int64_t proportional_set_size() {
  malloc_trim(0);
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    std::int64_t kib = 0;
    if (word == "Pss:" && file >> kib) return kib * 1024;
  }
  fail("/proc/self/smaps_rollup has no line Pss");
}

std::int64_t largest_bucket(const ddp::Reducer& reducer, const torch::nn::Module& module) {
  std::map<std::string, std::int64_t> bytes_of;
  for (const auto& item : module.named_parameters()) {
    bytes_of[item.key()] = static_cast<std::int64_t>(item.value().nbytes());
  }
  std::int64_t largest = 0;
  for (const auto& bucket : reducer.layout()) {
    std::int64_t bytes = 0;
    for (const auto& name : bucket) bytes += bytes_of.at(name);
    largest = std::max(largest, bytes);
  }
  return largest;
}

void measure_memory(World& world, const Plan& plan) {
  const Batch batch = parse_batch(plan.tokens.back());
  // LibTorch itself allocates memory in the first steps, with and without DDP.
  const auto after_steps = [&](const std::function<void()>& step) {
    for (int i = 0; i < 4; ++i) step();
    world.communicator().barrier("before memory is counted")->wait();
    const auto bytes = proportional_set_size();
    world.communicator().barrier("after memory is counted")->wait();
    return slowest(world, static_cast<double>(bytes));
  };
  double bare = 0;
  {
    Transformer model;
    bare = after_steps([&] { batch.bare_step(model); });
  }
  Transformer model;
  DistributedDataParallel ddp(model, world);
  const double with_ddp = after_steps([&] { batch.step(ddp); });
  print(world, {{"parameters", elements_of(*model)},
                {"gradient_bytes", elements_of(*model) * 4},
                {"bucket_bytes", largest_bucket(ddp.reducer(), *model)},
                {"bare_bytes", bare},
                {"beyond_bytes", with_ddp - bare}});
}

/// Measures when the buckets of a synchronised step are ready: the input of step_model.py.
void measure_trace(World& world, const Plan& plan) {
  Transformer model;
  DistributedDataParallel ddp(model, world);
  for (const auto& text : plan.tokens) {
    const Batch batch = parse_batch(text);
    for (int i = 0; i < plan.warm_up + 1; ++i) batch.step(ddp);
    for (int i = 0; i < plan.steps * plan.blocks; ++i) {
      world.communicator().barrier("before a traced step")->wait();
      const std::uint64_t begin = monotonic_ns();
      const auto since = [begin](std::uint64_t time) { return 1e3 * seconds_between(begin, time); };
      batch.step(ddp);
      const auto& trace = ddp.trace();
      nlohmann::json buckets = nlohmann::json::array();
      for (const auto& launch : trace.launches) {
        buckets.push_back({{"bytes", launch.bytes},
                           {"ready_ms", since(launch.ready_ns)},
                           {"asked_ms", since(launch.asked_ns)},
                           {"done_ms", since(launch.done_ns)}});
      }
      print(world, {{"tokens", batch.inputs.size(0) * batch.inputs.size(1)},
                    {"buckets", buckets},
                    {"backward_began_ms", since(trace.backward_began_ns)},
                    {"backward_ended_ms", since(trace.backward_ended_ns)},
                    {"finished_ms", since(trace.finished_ns)},
                    {"step_ms", since(monotonic_ns())}});
    }
  }
}

void run(World& world, const Plan& plan) {
  torch::manual_seed(1);
  if (plan.what == "step") measure_steps(world, plan);
  if (plan.what == "hooks") measure_hooks(world, plan);
  if (plan.what == "memory") measure_memory(world, plan);
  if (plan.what == "trace") measure_trace(world, plan);
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_ddp_rank", "One rank of bench_ddp.");
  lockstep::bench::Plan plan;
  tool.app().add_option("--measure", plan.what)->check(CLI::IsMember({"step", "hooks", "memory", "trace"}));
  tool.app().add_option("--tokens", plan.tokens, "As 4x128,1x32")->delimiter(',');
  tool.app().add_option("--blocks", plan.blocks)->check(CLI::PositiveNumber);
  tool.app().add_option("--compress", plan.compress)->check(CLI::IsMember({"fp16", "bf16"}));
  tool.app().add_option("--steps", plan.steps)->check(CLI::PositiveNumber);
  return tool.run(argc, argv, [&] {
    lockstep::World world(argc, argv);
    lockstep::bench::run(world, plan);
  });
}
