// The record's figures of a GPU, from the simulated NVML (tests/device/nvml.cpp).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include "common/files.h"
#include "exporters/record/record.h"
#include "runtime/profile/device_clock.h"
#include "runtime/profile/resource_sampler.h"
#include "runtime/profile/step_timer.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {
namespace {

using record::Gpu;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kGpu1 = "GPU-51515151515151515151515151515101";  // as CUDA's properties have it
constexpr std::uint64_t kSecond = 1'000'000'000;
const Identity kRank{.rank = 3, .size = 4, .node = "n1"};

class GpuSamplerTest : public ::testing::Test {
 protected:
  GpuSamplerTest() {
    for (const char* name : {"LOCKSTEP_RECORD", "LOCKSTEP_REPORT_DIR", "LOCKSTEP_METRICS", "SLURM_STEP_GPUS",
                             "SLURM_JOB_GPUS", "CUDA_VISIBLE_DEVICES"})
      ::unsetenv(name);
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
    ::setenv("SIMULATED_NVML", (folder_ / "nvml").c_str(), 1);
  }
  void set(const std::string& values) const { write_file_atomically(folder_ / "nvml", values); }

  lockstep::testing::TemporaryFolder folder_;
};

TEST_F(GpuSamplerTest, SamplesTheGpuOfThisUuidOnly) {
  set("memory_used 100 1.memory_used 70 1.sm_mhz 690 1.ecc_corrected 5 1.ecc_uncorrected 2 1.power_mw 300000");
  GpuSampler sampler(kGpu1, kRank);
  const Gpu gpu = sampler.sample(kSecond, false);
  EXPECT_EQ(record::uuid_text(gpu), "GPU-51515151-5151-5151-5151-515151515101");
  EXPECT_EQ(gpu.memory_bytes, 70);
  EXPECT_EQ(gpu.memory_total_bytes, 64ULL << 30U);
  EXPECT_EQ(gpu.sm_mhz, 690);
  EXPECT_EQ(gpu.sm_max_mhz, 1980);
  EXPECT_EQ(gpu.memory_mhz, 2619);
  EXPECT_EQ(gpu.power_mw, 300'000);
  EXPECT_EQ(gpu.ecc_corrected, 5);
  EXPECT_EQ(gpu.ecc_uncorrected, 2);
}

TEST_F(GpuSamplerTest, SumsUpTheTimesOfTheTraining) {
  set("busy_percent 10 energy_mj 5000 memory_used 90");
  GpuSampler sampler(kGpu1, kRank);
  sampler.sample(1 * kSecond, false);  // loads the model
  sampler.sample(5 * kSecond, true);   // the first step has ended
  set("busy_percent 80 throttle_reasons 0x20 energy_mj 9000 memory_used 40");
  sampler.sample(6 * kSecond, true);
  set("busy_percent 50 throttle_reasons 0x4 energy_mj 12000 memory_used 60");
  const Gpu gpu = sampler.sample(8 * kSecond, true);
  EXPECT_EQ(gpu.measured_ns, 3 * kSecond);
  EXPECT_DOUBLE_EQ(gpu.busy(), (0.8 + 2 * 0.5) / 3);
  EXPECT_EQ(gpu.slowed_ns, kSecond);
  EXPECT_EQ(gpu.capped_ns, 2 * kSecond);
  EXPECT_EQ(gpu.throttle_reasons, 0x24);
  EXPECT_EQ(gpu.busy_percent, 50);
  EXPECT_EQ(gpu.energy_mj, 7000);
  EXPECT_EQ(gpu.memory_bytes, 60);
  EXPECT_EQ(gpu.memory_peak_bytes, 90);
}

TEST_F(GpuSamplerTest, LeavesOutWhatTheGpuDoesNotTell) {
  set("busy_percent none energy_mj none mig 1 ecc_uncorrected none throttle_reasons 0x40");
  GpuSampler sampler(kGpu1, kRank);
  sampler.sample(kSecond, true);
  const Gpu gpu = sampler.sample(2 * kSecond, true);
  EXPECT_EQ(gpu.measured_ns, 0);
  EXPECT_EQ(gpu.energy_mj, 0);
  EXPECT_EQ(gpu.memory_total_bytes, 0) << "other jobs use the memory too";
  EXPECT_EQ(gpu.sm_mhz, 1980);
}

TEST_F(GpuSamplerTest, CountsXidsAndPrintsEachNumberOnce) {
  set("");
  GpuSampler sampler(kGpu1, kRank);
  const auto printed = [&](const std::string& values) {
    set(values);
    ::testing::internal::CaptureStderr();
    sampler.sample(kSecond, true);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(printed("0.xid 48"), "") << "of another GPU";
  EXPECT_EQ(
      printed("1.xid 79"),
      "lockstep: rank 3 on n1: its GPU GPU-51515151-5151-5151-5151-515151515101 reported Xid 79, an error of the GPU or its driver: report it to the administrator (dmesg | grep Xid), and leave the node out (sbatch --exclude=n1)\n");
  EXPECT_THAT(
      printed("1.xid 79 1.xid 79 1.xid 31"),
      ::testing::StartsWith(
          "lockstep: rank 3 on n1: its GPU GPU-51515151-5151-5151-5151-515151515101 reported Xid 31"));
  const Gpu gpu = sampler.sample(2 * kSecond, true);
  EXPECT_EQ(gpu.xid_errors, 3);
  EXPECT_EQ(gpu.last_xid, 31);
}

TEST_F(GpuSamplerTest, WithoutTheGpuOrTheDriverSamplesAreEmpty) {
  set("gpus 1");
  EXPECT_FALSE(GpuSampler(kGpu1, kRank).sample(kSecond, true).sampled());
  EXPECT_FALSE(GpuSampler("", kRank).sample(kSecond, true).sampled());
  for (const char* const result : {"init 9", "init 18"}) {
    set(result);
    EXPECT_FALSE(GpuSampler(kGpu1, kRank).sample(kSecond, true).sampled()) << result;
  }
  EXPECT_EQ(nvml::Library::open("libnvidia-ml-of-no-driver.so.1"), nullptr);
}

TEST_F(GpuSamplerTest, CountsTheGpusThatSlurmGrants) {
  const auto counts = [](const char* variable, const char* value) {
    ::setenv(variable, value, 1);
    const GrantedGpus granted = granted_gpus();
    ::unsetenv(variable);
    return granted.count;
  };
  EXPECT_EQ(granted_gpus().count, 0);
  EXPECT_EQ(counts("SLURM_STEP_GPUS", "0,1,2,3"), 4);
  EXPECT_EQ(counts("SLURM_JOB_GPUS", "0-2,7"), 4);
  EXPECT_EQ(counts("CUDA_VISIBLE_DEVICES", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6"), 1);
  EXPECT_EQ(counts("CUDA_VISIBLE_DEVICES", "NoDevFiles"), 0);
  EXPECT_EQ(counts("CUDA_VISIBLE_DEVICES", ""), 0);
  ::setenv("SLURM_STEP_GPUS", "4,5", 1);
  EXPECT_EQ(counts("CUDA_VISIBLE_DEVICES", "0"), 2) << "a task with --gpus-per-task sees one of them";
  EXPECT_EQ(granted_gpus().variable, "SLURM_STEP_GPUS=4,5");
  ::unsetenv("SLURM_STEP_GPUS");
}

class Clock : public DeviceClock {
 public:
  std::string device_identity() noexcept override { return kGpu1; }
  Mark mark() noexcept override { return std::make_shared<int>(); }
  bool reached(const Mark& /*mark*/) noexcept override { return true; }
  void wait(const Mark& /*mark*/) noexcept override {}
  std::uint64_t ns_between(const Mark& /*from*/, const Mark& /*to*/) noexcept override { return kSecond; }
};

TEST_F(GpuSamplerTest, TheRecordHasTheGpuOnWhichTheRankComputes) {
  set("memory_used 77");
  ::setenv("SLURM_STEP_GPUS", "0,1", 1);
  StepTimer timer(Identity{.job_id = 5, .size = 1, .node = "n1", .program = "train"});
  timer.use_device_clock(std::make_unique<Clock>(),
                         [] { return AllocatorState{.retries = 3, .unused_bytes = 88}; });
  const auto file = timer.file();
  timer.finish();
  const auto resources = record::Reader(file).read().resources;
  ASSERT_TRUE(resources.has_value());
  EXPECT_EQ(record::uuid_text(resources->gpu), "GPU-51515151-5151-5151-5151-515151515101");
  EXPECT_EQ(resources->gpu.memory_peak_bytes, 77);
  EXPECT_EQ(resources->gpu.granted, 2);
  EXPECT_EQ(resources->gpu.allocator_retries, 3);
  EXPECT_EQ(resources->gpu.allocator_unused_bytes, 88);
}

TEST_F(GpuSamplerTest, AModelOnTheCpuIsNamedIfTheJobHasGpus) {
  const auto error_of = [&](int rank) {
    StepTimer timer(Identity{.job_id = 5, .rank = rank, .size = 2, .node = "n1", .program = "train"});
    ::testing::internal::CaptureStderr();
    timer.use_cpu();
    timer.use_cpu();  // a second model
    const std::string error = ::testing::internal::GetCapturedStderr();
    const auto file = timer.file();
    timer.finish();
    EXPECT_EQ(record::Reader(file).read().resources->gpu.granted, granted_gpus().count);
    return error;
  };
  EXPECT_THAT(error_of(0), IsEmpty()) << "no GPUs";
  ::setenv("SLURM_JOB_GPUS", "0,1", 1);
  EXPECT_EQ(
      error_of(0),
      "lockstep: rank 0 on n1 has a model on the CPU although the job has 2 GPUs here (SLURM_JOB_GPUS=0,1): move it to a GPU, with a LibTorch for CUDA, or ask Slurm for none\n");
  EXPECT_THAT(error_of(1), IsEmpty()) << "once for the job";
}

}  // namespace
}  // namespace lockstep::profile
