#include "runtime/profile/step_timer.h"

#include <unistd.h>

#include <fstream>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/files.h"
#include "tests/unit/runtime/profile/step_timer_fixture.h"

namespace lockstep::profile {
namespace {

TEST_F(StepTimerTest, TimeOfInnerScopesDoesNotCountForTheOuterOne) {
  StepTimer timer(identity_);
  {
    const auto backward = timer.phase(Phase::backward);
    work_for_us(2000);
    {
      const auto exposed = timer.phase(Phase::comm_exposed);
      work_for_us(3000);
    }
    work_for_us(1000);
  }
  timer.end_step({});
  const Times& step = timer.last_step();
  EXPECT_GE(ns(step, Phase::backward), 3'000'000);
  EXPECT_GE(ns(step, Phase::comm_exposed), 3'000'000);
  EXPECT_GE(step.step_ns, 6'000'000);
  EXPECT_EQ(sum(step), step.step_ns);
}

TEST_F(StepTimerTest, TimeBeforeTheFirstScopeBelongsToNoStep) {
  StepTimer timer(identity_);
  work_for_us(20000);
  { const auto scope = timer.phase(Phase::data_wait); }
  timer.end_step({});
  EXPECT_LT(timer.last_step().step_ns, 20'000'000);
}

TEST_F(StepTimerTest, BeginStepLeavesOutTheTimeSinceTheLastStep) {
  StepTimer timer(identity_);
  timer.begin_step();
  timer.end_step({});
  {
    const auto evaluation = timer.phase(Phase::forward);
    work_for_us(20000);
  }
  timer.begin_step();
  timer.end_step({});
  EXPECT_LT(timer.last_step().step_ns, 20'000'000);
  EXPECT_EQ(sum(timer.last_step()), timer.last_step().step_ns);
}

TEST_F(StepTimerTest, ScopeThatOutlivesItsStepCountsForBothSteps) {
  StepTimer timer(identity_);
  {
    const auto scope = timer.phase(Phase::checkpoint);
    work_for_us(1000);
    timer.end_step({});
    EXPECT_GE(ns(timer.last_step(), Phase::checkpoint), 1'000'000);
    work_for_us(2000);
  }
  timer.end_step({});
  EXPECT_GE(ns(timer.last_step(), Phase::checkpoint), 2'000'000);
  EXPECT_EQ(sum(timer.last_step()), timer.last_step().step_ns);
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(sum(timer.totals()), timer.totals().step_ns);
}

TEST_F(StepTimerTest, RecordHoldsTheSameNumbersAsTheTimer) {
  StepTimer timer(identity_);
  for (int step = 0; step < 3; ++step) {
    const auto scope = timer.phase(Phase::forward);
    work_for_us(100);
    timer.add_comm(10, 5, 2);
    timer.add_bytes_read(100);
    timer.end_step({.tokens = 10, .samples = 2, .padding = 1});
  }
  EXPECT_EQ(timer.file(), folder_ / "lockstep/records/5.1/rank-000003.record");
  const Snapshot seen = Reader(timer.file()).read();
  EXPECT_EQ(seen.counters.phase_ns, timer.totals().phase_ns);
  EXPECT_EQ(seen.counters.step_ns, timer.totals().step_ns);
  EXPECT_EQ(seen.counters.tokens, 30);
  EXPECT_EQ(seen.counters.comm_wait_ns, 15);
  EXPECT_EQ(seen.counters.bytes_read, 300);
  EXPECT_EQ(seen.steps.back().late_rank, 2);
  EXPECT_EQ(seen.doing, Phase::other);
  EXPECT_EQ(seen.identity.program, "train");
}

TEST_F(StepTimerTest, RecordHoldsWhatTheProcessUses) {
  StepTimer timer(identity_);
  const Reader reader(timer.file());
  {
    const auto forward = timer.phase(Phase::forward);
    std::vector<char> touched(std::size_t{64} << 20U, 'x');
    work_for_us(30'000 + static_cast<std::uint64_t>(touched.back() == 'y'));
    timer.add_loader_work({.build_ns = 3000, .user_ns = 2000, .system_ns = 500});
  }
  timer.end_step({});
  timer.finish();
  const auto used = reader.read(0).resources;
  ASSERT_TRUE(used.has_value());
  EXPECT_GT(used->user_ns + used->system_ns, 20'000'000U);
  EXPECT_GT(used->memory_peak_bytes, std::size_t{64} << 20U);
  EXPECT_LT(used->memory_peak_bytes, std::size_t{4} << 30U);
  EXPECT_GE(used->memory_peak_bytes, used->memory_bytes);
  EXPECT_GT(used->memory_limit_bytes, used->memory_peak_bytes);
  EXPECT_GT(used->memory_file_bytes, 0U);
  EXPECT_LT(used->memory_file_bytes, used->memory_bytes);
  EXPECT_GT(used->read_bytes, 0U);
  EXPECT_GT(used->read_calls, 0U);
  EXPECT_EQ(used->loader_build_ns, 3000U);
  EXPECT_GT(used->first_step_ns, reader.read(0).start_monotonic_ns);
}

TEST_F(StepTimerTest, Rank0SaysAtTheEndWhereTheTimeWent) {
  ::testing::internal::CaptureStderr();
  identity_.rank = 1;
  {
    StepTimer timer(identity_);
    timer.begin_step();
    timer.end_step({});
  }
  identity_.rank = 0;
  { const StepTimer without_steps(identity_); }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ::testing::internal::CaptureStderr();
  {
    StepTimer timer(identity_);
    for (int step = 0; step < 2; ++step) {
      {
        const auto forward = timer.phase(Phase::forward);
        work_for_us(30'000);
      }
      const auto wait = timer.phase(Phase::data_wait);
      work_for_us(30'000);
      timer.end_step({});
    }
  }
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      ::testing::MatchesRegex(
          "lockstep: goodput of rank 0 in 2 steps: [1-9][0-9]? % of [0-9.]+ m?s trained; the rest: .*input [1-9][0-9]? %.*\n"));
}

// A rank that is killed leaves a sample, though none of its code runs at its end.
TEST_F(StepTimerTest, RecordHoldsASampleBeforeTheEnd) {
  const StepTimer timer(identity_);
  const Reader reader(timer.file());
  const std::uint64_t begin = monotonic_ns();
  while (!reader.read(0).resources && monotonic_ns() - begin < 10'000'000'000U) std::this_thread::yield();
  EXPECT_TRUE(reader.read(0).resources.has_value());
}

TEST_F(StepTimerTest, FolderFromThePluginIsPreferred) {
  ::setenv("LOCKSTEP_RECORD", (folder_ / "given").c_str(), 1);
  const StepTimer timer(identity_);
  EXPECT_EQ(timer.file(), folder_ / "given/rank-000003.record");
}

TEST_F(StepTimerTest, RuntimeFolderOfAnotherMachineIsNotUsed) {
  ::setenv("XDG_RUNTIME_DIR", (folder_ / "none").c_str(), 1);
  const StepTimer timer(identity_);
  EXPECT_EQ(timer.file().string().rfind("/dev/shm/lockstep-", 0), 0);
  std::filesystem::remove_all(timer.file().parent_path());
}

TEST_F(StepTimerTest, WithoutASchedulerTheLaunchersProcessIdIsTheJobNumber) {
  identity_.job_id = 0;
  const StepTimer timer(identity_);
  EXPECT_EQ(Reader(timer.file()).identity().job_id, static_cast<std::uint64_t>(::getppid()));
}

TEST_F(StepTimerTest, WithoutAFolderItPrintsOneLineAndStillMeasures) {
  std::ofstream(folder_ / "file").close();
  ::setenv("LOCKSTEP_RECORD", (folder_ / "file/records").c_str(), 1);
  ::testing::internal::CaptureStderr();
  StepTimer timer(identity_);
  {
    const auto scope = timer.phase(Phase::forward);
    work_for_us(100);
  }
  timer.add_comm(1, 1, 0);
  timer.end_step({.tokens = 4});
  timer.finish();
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, ::testing::HasSubstr((folder_ / "file/records").string()));
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1);
  EXPECT_TRUE(timer.file().empty());
  EXPECT_GE(ns(timer.totals(), Phase::forward), 100'000);
  EXPECT_EQ(timer.totals().counts.tokens, 4);
}

TEST_F(StepTimerTest, MetricsOffWritesNoFile) {
  ::setenv("LOCKSTEP_METRICS", "off", 1);
  ::setenv("LOCKSTEP_RECORD", (folder_ / "given").c_str(), 1);
  const StepTimer timer(identity_);
  EXPECT_TRUE(timer.file().empty());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "given"));
  ::unsetenv("LOCKSTEP_METRICS");
}

TEST_F(StepTimerTest, ValuesOtherThanOnAndOffAreRefusedAtTheStart) {
  ::setenv("LOCKSTEP_METRICS", "maybe", 1);
  EXPECT_THAT(
      [&] { const StepTimer timer(identity_); },
      ::testing::ThrowsMessage<Error>(::testing::HasSubstr("LOCKSTEP_METRICS='maybe' must be on or off")));
  ::unsetenv("LOCKSTEP_METRICS");
}

TEST_F(StepTimerTest, FinishedRankCopiesItsRecordForTheReport) {
  ::setenv("LOCKSTEP_RECORD", (folder_ / "node").c_str(), 1);
  ::setenv("LOCKSTEP_REPORT_DIR", (folder_ / "shared/report").c_str(), 1);
  StepTimer timer(identity_);
  write_file_atomically(folder_ / "node/staging.json", "{\"job\":5}");
  { const auto scope = timer.phase(Phase::forward); }
  timer.end_step({.tokens = 9});
  timer.finish();
  timer.finish();
  const Snapshot copy = Reader(folder_ / "shared/report/rank-000003.record").read();
  EXPECT_EQ(copy.counters.tokens, 9);
  EXPECT_GT(copy.finished_unix_ns, 0);
  EXPECT_EQ(read_text_file(folder_ / "shared/report/staging-n1.json"), "{\"job\":5}");
}

TEST_F(StepTimerTest, ReportFolderThatCannotBeMadeIsReportedInOneLine) {
  std::ofstream(folder_ / "file").close();
  ::setenv("LOCKSTEP_REPORT_DIR", (folder_ / "file/report").c_str(), 1);
  StepTimer timer(identity_);
  ::testing::internal::CaptureStderr();
  timer.finish();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              ::testing::AllOf(::testing::HasSubstr("rank 3 on n1"), ::testing::HasSubstr("file/report")));
}

}  // namespace
}  // namespace lockstep::profile
