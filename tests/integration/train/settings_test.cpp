// Settings reach LibTorch, and contradictions end the job at its start.
#include "runtime/train/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/torch.h>

#include <algorithm>
#include <thread>

#include "common/error.h"
#include "runtime/comm/process_settings.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

std::int64_t memory_faults() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

struct Settings : ::testing::Test {
  ~Settings() override { apply_settings(world()); }
};

TEST_F(Settings, ReachLibTorch) {
  const auto& context = at::globalContext();
  apply_settings(world(),
                 {.deterministic = true, .matmul_precision = MatmulPrecision::high, .anomaly_mode = true});
  EXPECT_TRUE(context.deterministicAlgorithms());
  EXPECT_TRUE(context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGH);
  EXPECT_TRUE(torch::autograd::AnomalyMode::is_enabled());
  apply_settings(world(), {.cudnn_benchmark = true, .cudnn_tf32 = false});
  EXPECT_FALSE(context.deterministicAlgorithms());
  EXPECT_TRUE(context.benchmarkCuDNN());
  EXPECT_FALSE(context.allowTF32CuDNN());
  EXPECT_TRUE(context.float32MatmulPrecision() == at::Float32MatmulPrecision::HIGHEST);
  EXPECT_FALSE(torch::autograd::AnomalyMode::is_enabled());
}

TEST_F(Settings, ThatDifferBetweenRanksAreRefusedByName) {
  if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
  const auto error = error_of([] { apply_settings(world(), {.deterministic = world().rank() == 1}); });
  EXPECT_THAT(error, HasSubstr("setting deterministic"));
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST_F(Settings, ThatContradictEachOtherAreRefused) {
  const auto error = [](const TrainingSettings& settings, bool cuda = false) {
    return error_of([&] { train::check_settings(settings, cuda); });
  };
  EXPECT_EQ(error({}), "no error");
  EXPECT_THAT(error({.deterministic = true, .cudnn_benchmark = true}),
              HasSubstr("contradicts deterministic"));
  EXPECT_THAT(error({.threads = -1}), HasSubstr("must not be negative"));
  EXPECT_THAT(error({.threads = 7}), HasSubstr("OMP_NUM_THREADS is 1"));  // the tests set it
  EXPECT_EQ(error({.deterministic = true}), "no error");
  EXPECT_THAT(error({.deterministic = true}, /*cuda=*/true), HasSubstr("CUBLAS_WORKSPACE_CONFIG"));
}

TEST_F(Settings, AreDescribedInOneLine) {
  EXPECT_EQ(train::describe({}, false), "deterministic algorithms off, anomaly mode off");
  EXPECT_EQ(
      train::describe({.deterministic = true, .threads = 2}, true),
      "deterministic algorithms on, anomaly mode off, cuDNN autotuner off, matmul precision highest, TF32 in convolutions on, 2 threads");
}

TEST_F(Settings, ThatAreSlowAreNamed) {
  EXPECT_THAT(train::slow_settings({.threads = 2}, 2), IsEmpty());
  EXPECT_THAT(train::slow_settings({.deterministic = true, .threads = 3, .anomaly_mode = true}, 2),
              ElementsAre(HasSubstr("anomaly mode"), HasSubstr("deterministic"),
                          HasSubstr("3 threads share 2 CPUs")));
}

#ifndef __SANITIZE_ADDRESS__  // it has a malloc of its own
TEST_F(Settings, OfWorldKeepTheMemoryOfLargeBlocks) {
  const auto page_faults = [] {
    const auto before = memory_faults();
    torch::ones({10 << 20});  // 40 MiB; from 32 MiB on, glibc would return a block in any case
    return memory_faults() - before;
  };
  std::int64_t fewest = page_faults();
  // Small blocks may lie between the first ones, until glibc has joined what is free.
  for (int i = 0; i < 16; ++i) fewest = std::min(fewest, page_faults());
  EXPECT_LT(fewest, 1000);
}
#endif

TEST_F(Settings, OfWorldFlushDenormals) {
  EXPECT_EQ((torch::full({1024}, 1e-30F) * 1e-10F).count_nonzero().item<std::int64_t>(), 0);
  std::int64_t kept = -1;
  std::thread([&] {
    kept = (torch::full({1024}, 1e-30F) * 1e-10F).count_nonzero().item<std::int64_t>();
  }).join();
  EXPECT_EQ(kept, 0) << "in a thread that was started later";
}

// LibTorch would start one for each CPU of the node.
TEST_F(Settings, OfWorldGiveTasksAsManyThreadsAsComputing) {
  EXPECT_EQ(at::get_num_interop_threads(), 1) << "OMP_NUM_THREADS of the tests";
}

TEST_F(Settings, MoreThreadsThanCpusAreNamed) {
  EXPECT_EQ(comm::too_many_threads(4, 4), std::nullopt);
  EXPECT_EQ(comm::too_many_threads(4, 1),
            "4 threads have 1 CPU and wait for each other: set OMP_NUM_THREADS to at most 1");
}

TEST_F(Settings, TheUnitForBfloat16IsFoundInCpuinfo) {
  EXPECT_EQ(comm::bfloat16_unit("processor : 0\nflags\t\t: fpu avx512_bf16 amx_bf16\nbugs : x\n"), "AMX");
  EXPECT_EQ(comm::bfloat16_unit("flags\t\t: fpu avx512_bf16 sse\n"), "AVX512-BF16");
  EXPECT_EQ(comm::bfloat16_unit("flags\t\t: fpu avx512f\nnote : amx_bf16 \n"), "");
  EXPECT_EQ(comm::bfloat16_unit("Features : asimd\n"), "");
}

}  // namespace
}  // namespace lockstep::testing
