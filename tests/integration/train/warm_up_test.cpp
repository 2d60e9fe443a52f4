// A memory warm-up leaves no trace under DistributedDataParallel, and a bad loss names step and rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <new>

#include "common/error.h"
#include "runtime/ddp/collectives.h"
#include "runtime/train/debug.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

// A model with dropout and batch norm, and a training of a few steps whose losses are compared.
struct NoisyImpl : torch::nn::Module {
  NoisyImpl() {
    first = register_module("first", torch::nn::Linear(6, 8));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    drop = register_module("drop", torch::nn::Dropout(0.5));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) { return drop(norm(first(x))); }
  torch::nn::Linear first{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Dropout drop{nullptr};
};
TORCH_MODULE(Noisy);

std::vector<double> losses(bool warmed_up) {
  torch::manual_seed(2);
  Noisy model;
  DistributedDataParallel ddp(model, world(), small_buckets());
  const auto warm_up = [&] {
    if (warmed_up) memory_warm_up(*model, [&] { return model->forward(rows(64, 9)).square().sum(); });
  };
  warm_up();
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  std::vector<double> result;
  for (int step = 0; step < 4; ++step) {
    for (const bool last : {false, true}) {
      const auto hold = ddp.no_sync_unless(last);
      const auto loss = ddp(rows(4, static_cast<std::uint64_t>(10 * step + world().rank()))).square().sum();
      ddp.backward(loss, 4);
      result.push_back(loss.item<double>());
      if (step == 2) warm_up();  // with gradients that are accumulated, and with those of the whole step
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& buffer : model->buffers())
    result.push_back(buffer.sum().to(torch::kDouble).item<double>());
  return result;
}

TEST(MemoryWarmUp, LeavesATrainingAsItIs) {
  EXPECT_EQ(losses(true), losses(false));
}

// Each token takes 4 KiB for its values and as much for each result of the loss.
struct Rows {
  torch::nn::Linear model{torch::nn::LinearOptions(1, 1).bias(false)};
  std::uint64_t largest = 0;

  std::function<torch::Tensor(std::uint64_t)> loss() {
    return [this](std::uint64_t cap) {
      largest = std::max(largest, cap);
      return (torch::ones({static_cast<std::int64_t>(cap), 1024}) * model->weight.view({1})).square().sum();
    };
  }
};

TEST(LargestCap, GrowsUntilTheMemoryIsUsedAndNotBeyond) {
  Rows rows;
  const auto cap_for = [&](std::uint64_t mebibytes) {
    return find_largest_cap(world(), *rows.model, rows.loss(), {.limit_bytes = mebibytes << 20U});
  };
  const auto small = cap_for(200);
  EXPECT_GT(small, 4000U) << "170 MiB hold this many tokens 10 times";
  EXPECT_LT(small, 22000U) << "170 MiB hold this many tokens twice";
  EXPECT_LT(rows.largest, 30000U) << "a step too far would end the process";
  const auto ratio = static_cast<double>(cap_for(600)) / static_cast<double>(small);
  EXPECT_GT(ratio, 2);
  EXPECT_LT(ratio, 5);
  EXPECT_EQ(find_largest_cap(world(), *rows.model, rows.loss(), {.end = 700}), 700U);
}

// Linux would give the memory, and end the process later.
TEST(LargestCap, TheFirstOneIsTriedOnlyIfAPartOfItFits) {
  Rows rows;
  const auto error = error_of([&] {
    find_largest_cap(world(), *rows.model, rows.loss(), {.begin = 200'000, .limit_bytes = 200U << 20U});
  });
  EXPECT_THAT(error, HasSubstr("a micro-batch of 200000 tokens does not fit into memory"));
  EXPECT_LT(rows.largest, 30000U);
}

// The model communicates, so all ranks must try the same caps.
TEST(LargestCap, OfOneRankWithLessMemoryIsThatOfAll) {
  const std::uint64_t limit = world().rank() == 0 ? 60U << 20U : 200U << 20U;
  Rows rows;
  const auto communicating = [&](std::uint64_t cap) {
    const auto least = torch::tensor({static_cast<std::int64_t>(cap)});
    all_reduce(world(), least, ReduceOp::min, "statistics");
    EXPECT_EQ(static_cast<std::uint64_t>(least.item<std::int64_t>()), cap);
    return rows.loss()(cap);
  };
  EXPECT_LT(find_largest_cap(world(), *rows.model, communicating, {.limit_bytes = limit}), 7000U);
}

TEST(LargestCap, IsNotThatOfAMicroBatchThatCannotBeRead) {
  Rows rows;
  const auto unreadable = [&](std::uint64_t cap) {
    if (cap > 1000 && world().rank() == 0) fail("cannot read shard 3");
    return rows.loss()(1) * static_cast<double>(cap);
  };
  const auto error = error_of([&] { find_largest_cap(world(), *rows.model, unreadable); });
  EXPECT_THAT(error, HasSubstr("cannot read shard 3"));
  EXPECT_EQ(error.find("rank 0 could not try a micro-batch of 1024 tokens") != std::string::npos,
            world().rank() != 0)
      << error;
}

// As on a GPU, whose allocator says so.
TEST(LargestCap, IsFoundWhereTheAllocatorRefuses) {
  Rows rows;
  const auto refusing = [&](std::uint64_t cap) {
    if (cap > 3000) throw std::bad_alloc();
    return rows.loss()(1) * static_cast<double>(cap);
  };
  const auto cap = find_largest_cap(world(), *rows.model, refusing, {.limit_bytes = std::uint64_t{1} << 40U});
  EXPECT_LE(cap, 3000U);
  EXPECT_GE(cap, 2800U);
  EXPECT_THAT(error_of([&] { find_largest_cap(world(), *rows.model, refusing, {.begin = 4000}); }),
              HasSubstr("a micro-batch of 4000 tokens does not fit into memory"));
}

TEST(CheckLoss, NamesStepAndRank) {
  check_loss(world(), 0.5, 3);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto error = error_of([&] { check_loss(world(), nan, 12); });
  EXPECT_THAT(error, HasSubstr("the loss is nan in step 12 on rank " + std::to_string(world().rank())));
}

}  // namespace
}  // namespace lockstep::testing
