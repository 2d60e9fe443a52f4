// Every object of the library that keeps something from step to step continues from a checkpoint as if the training had
// not been interrupted, to the bit. (The loader: tests/integration/data/loader_resume_test.cpp.)
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "common/files.h"
#include "tests/integration/train/checkpoint_world.h"
#include "tests/integration/train/optimizer_archive.h"

namespace lockstep::testing {
namespace {

/// A training with one of the optimizers. Schedules: checkpoint_test.cpp.
template <typename Optimizer, typename Options>
struct Trained {
  Trained(const std::filesystem::path& folder, const Options& options, bool read_only)
      : ddp(net, world(), small_buckets()),
        optimizer(decay_groups(*net, options), options),
        plateau(optimizer, {.factor = 0.5, .patience = 1}),
        checkpointer(world(), folder, {.read_only = read_only}) {
    checkpointer.add("model", *net);
    checkpointer.add("optimizer", optimizer);
    checkpointer.add("plateau", plateau);
  }

  void train(std::int64_t until) {
    for (; step < until; ++step) {
      const auto inputs = my_part(rows(4 * world().size(), 100 + static_cast<std::uint64_t>(step)));
      ddp.backward(sum_of_squares(ddp(inputs), torch::zeros_like(inputs)), 4);
      optimizer.step();
      optimizer.zero_grad();
      plateau.observe(step % 2 == 0 ? 1.0 : 2.0);
    }
  }

  Net net;
  DistributedDataParallel<NetImpl> ddp;
  Optimizer optimizer;
  ReduceOnPlateau plateau;
  std::int64_t step = 0;
  Checkpointer checkpointer;
};

template <typename Optimizer, typename Options>
void expect_to_resume(const Options& options) {
  const SharedFolder folder;
  torch::manual_seed(3);
  Trained<Optimizer, Options> whole(folder / "run", options, false);
  whole.train(4);
  whole.checkpointer.save(4);
  whole.train(7);
  whole.checkpointer.wait();
  torch::manual_seed(77);
  Trained<Optimizer, Options> resumed(folder / "run", options, true);
  resumed.step = resumed.checkpointer.load_latest().value_or(0);
  ASSERT_EQ(resumed.step, 4);
  resumed.train(7);
  EXPECT_TRUE(same_bits(*whole.net, *resumed.net));
}

TEST(ResumedState, OfEveryOptimizerIsTheSameToTheBit) {
  using namespace torch::optim;
  expect_to_resume<Adam>(AdamOptions(0.01).amsgrad(true));
  expect_to_resume<AdamW>(kDecayingAdamW);
  expect_to_resume<torch::optim::SGD>(SGDOptions(0.01).momentum(0.9));
  expect_to_resume<RMSprop>(RMSpropOptions(0.01).momentum(0.9).centered(true));
  expect_to_resume<Adagrad>(AdagradOptions(0.01));
  expect_to_resume<FusedAdam>(AdamOptions(0.01));
  expect_to_resume<FusedAdamW>(kDecayingAdamW);
  expect_to_resume<FusedSGD>(SGDOptions(0.01).momentum(0.9));
}

// In MB, from /proc/self/status.
double memory(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(name)) return static_cast<double>(std::stoll(line.substr(name.size() + 1))) / 1024;
  return -1;
}

TEST(Loading, NeedsMemoryForTheLargestObjectAndKeepsNone) {
  const SharedFolder folder;
  const auto made = [] {
    return torch::nn::Linear(torch::nn::LinearOptions(1024, 8192).bias(false));
  };  // 32 MB
  torch::nn::Linear first = made();
  torch::nn::Linear second = made();
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("first", *first);
  checkpointer.add("second", *second);
  checkpointer.save(1);
  checkpointer.wait();
  std::ofstream("/proc/self/clear_refs") << "5";  // the peak begins here
  const double before = memory("VmRSS");
  checkpointer.load_latest();
  EXPECT_LT(memory("VmHWM") - before, 48);
  EXPECT_LT(memory("VmRSS") - before, 8);
}

TEST(Loading, ADamagedPartOfAnyRankTakesTheCheckpointBefore) {
  const SharedFolder folder;
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kDecayingAdamW);
  SavedOptimizer first;
  {
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("optimizer", optimizer);
    for (const std::int64_t step : {1, 2}) {
      const auto inputs = my_part(rows(4 * world().size(), static_cast<std::uint64_t>(step)));
      ddp.backward(sum_of_squares(ddp(inputs), torch::zeros_like(inputs)), 4);
      optimizer.step();
      optimizer.zero_grad();
      if (step == 1) first = state_on_rank_0(optimizer);
      checkpointer.save(step);
    }
  }
  any_rank(false);
  if (world().rank() == 0) {
    const auto file = folder / fmt::format("run/step-000002/optimizer-{:05}.safetensors", world().size() - 1);
    std::string bytes = read_text_file(file);
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_file_atomically(file, bytes);
  }
  any_rank(false);
  Net other;
  DistributedDataParallel other_ddp(other, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> loaded(other_ddp, kDecayingAdamW);
  Checkpointer again(world(), folder / "run");
  again.add("optimizer", loaded);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(again.load_latest(), 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(said.find(fmt::format("step-000002 is damaged: optimizer-{:05}.safetensors was modified",
                                  world().size() - 1)) != std::string::npos,
            world().rank() == 0)
      << said;
  const SavedOptimizer after = state_on_rank_0(loaded);
  ASSERT_EQ(after.parameters.size(), first.parameters.size());
  for (const auto& [name, state] : first.parameters)
    EXPECT_TRUE(
        same_bits(state.at("exp_avg").toTensor(), after.parameters.at(name).at("exp_avg").toTensor()));
}

}  // namespace
}  // namespace lockstep::testing
