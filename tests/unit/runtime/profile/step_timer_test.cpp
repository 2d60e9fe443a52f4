#include "runtime/profile/step_timer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <unistd.h>

#include <fstream>
#include <numeric>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/files.h"
#include "exporters/record/reader.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::profile {
namespace {

using record::Reader;
using record::Snapshot;

void work_for_us(std::uint64_t us) {
  const std::uint64_t end = monotonic_ns() + us * 1000;
  while (monotonic_ns() < end) {
  }
}

std::uint64_t ns(const Times& times, Phase phase) {
  return times.phase_ns[record::index(phase)];
}

std::uint64_t sum(const Times& times) {
  return std::accumulate(times.phase_ns.begin(), times.phase_ns.end(), std::uint64_t{0});
}

class StepTimerTest : public ::testing::Test {
 protected:
  StepTimerTest() {
    for (const char* name : {"LOCKSTEP_RECORD", "LOCKSTEP_REPORT_DIR", "LOCKSTEP_METRICS"}) ::unsetenv(name);
    ::setenv("XDG_RUNTIME_DIR", folder_.path().c_str(), 1);
  }

  Identity identity_ = {.job_id = 5, .step_id = 1, .rank = 3, .size = 4, .node = "n1", .program = "train"};
  lockstep::testing::TemporaryFolder folder_;
};

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

// The calls that DistributedDataParallel makes in a step of two micro-batches.
const int kModel = 0;  // its address stands for the model

void two_micro_batches(StepTimer& timer) {
  for (const bool last : {false, true}) {
    timer.begin_training_forward(&kModel);
    { const auto scope = timer.phase(Phase::forward); }
    {
      const auto scope = timer.phase(Phase::backward);
      timer.add_backward_tokens(10);
      if (last) timer.note_synchronised(&kModel);
    }
  }
}

TEST_F(StepTimerTest, StepEndsWhenTheForwardAfterASynchronisedBackwardBegins) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  two_micro_batches(timer);
  work_for_us(2000);  // the optimizer's step belongs to the step
  EXPECT_EQ(timer.totals().steps, 0);
  two_micro_batches(timer);
  EXPECT_EQ(timer.totals().steps, 1);
  EXPECT_EQ(timer.last_step().counts.tokens, 20);
  EXPECT_GE(ns(timer.last_step(), Phase::other), 2'000'000);
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
  const Snapshot read = Reader(timer.file()).read();
  EXPECT_EQ(read.counters.steps, 2);
  EXPECT_EQ(read.counters.tokens, 40);
}

TEST_F(StepTimerTest, WaitForDataAfterASynchronisedBackwardBelongsToTheNextStep) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  two_micro_batches(timer);
  {
    const auto scope = timer.phase(Phase::data_wait);
    work_for_us(2000);
  }
  EXPECT_EQ(timer.totals().steps, 1);
  EXPECT_EQ(ns(timer.last_step(), Phase::data_wait), 0);
  two_micro_batches(timer);
  timer.finish();
  EXPECT_GE(ns(timer.last_step(), Phase::data_wait), 2'000'000);
}

TEST_F(StepTimerTest, EndStepOfTheProgramReplacesStepsThatEndOnTheirOwn) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  for (int step = 0; step < 3; ++step) {
    two_micro_batches(timer);
    timer.end_step({.tokens = 7, .samples = 1, .padding = 0});
    EXPECT_EQ(timer.last_step().counts.tokens, 7);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 3);
}

TEST_F(StepTimerTest, BatchesThatAreOnlyEvaluatedDoNotCount) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  timer.request_batch(true);
  timer.add_batch({.tokens = 5, .samples = 2, .padding = 1});
  timer.begin_training_forward(&kModel);
  timer.add_backward_tokens(4);  // the loader's numbers are used: they have samples and padding
  timer.note_synchronised(&kModel);
  timer.request_batch(true);
  EXPECT_EQ(timer.totals().steps, 1);
  for (int batch = 0; batch < 3; ++batch) {
    timer.add_batch({.tokens = 100, .samples = 1, .padding = 0});
    timer.request_batch(true);
  }
  EXPECT_EQ(timer.totals().steps, 1);
  timer.finish();
  EXPECT_EQ(timer.totals().counts.tokens, 5);
  EXPECT_EQ(timer.totals().counts.samples, 2);
  EXPECT_EQ(timer.totals().counts.padding, 1);
}

TEST_F(StepTimerTest, LoadersStepEndsOnceThoughEachMicroBatchIsSynchronised) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  for (int batch = 0; batch < 4; ++batch) {
    timer.request_batch(batch % 2 == 0);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0});
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(timer.last_step().counts.tokens, 10);
}

// A GAN: two models, each with its own synchronised backward.
TEST_F(StepTimerTest, TwoModelsInOneLoopMakeOneStep) {
  StepTimer timer(identity_);
  const int other_model = 1;
  timer.add_model(&kModel);
  timer.add_model(&other_model);
  const auto train = [&](const int* model) {
    timer.begin_training_forward(model);
    { const auto scope = timer.phase(Phase::forward); }
    timer.note_synchronised(model);
  };
  for (int step = 0; step < 5; ++step) {
    { const auto scope = timer.phase(Phase::data_wait); }
    train(&kModel);
    { const auto scope = timer.phase(Phase::data_wait); }  // noise for the other model
    train(&other_model);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 5);
}

TEST_F(StepTimerTest, AModelThatIsTrainedMoreOftenThanTheOthersEndsTheSteps) {
  StepTimer timer(identity_);
  const int other_model = 1;
  timer.add_model(&kModel);
  timer.add_model(&other_model);
  for (int step = 0; step < 6; ++step) {
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
    if (step % 3 != 2) continue;
    timer.begin_training_forward(&other_model);
    timer.note_synchronised(&other_model);
  }
  timer.finish();
  EXPECT_EQ(timer.totals().steps, 6);
}

TEST_F(StepTimerTest, ForwardWithoutGradientsIsNotTheNextStepsForward) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  const auto without_gradients = [&](bool evaluation) {
    const auto scope = timer.begin_forward_without_gradients();
    work_for_us(20'000);
    if (evaluation) timer.end_evaluation_forward();
  };
  two_micro_batches(timer);
  for (int batch = 0; batch < 3; ++batch) without_gradients(true);
  EXPECT_EQ(timer.totals().steps, 1) << "an evaluation begins when the step has ended";
  two_micro_batches(timer);
  without_gradients(false);  // such as samples for the next backward
  two_micro_batches(timer);
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_LT(timer.last_step().step_ns, 60'000'000) << "the evaluation belongs to no step";
  timer.finish();
  EXPECT_GE(ns(timer.last_step(), Phase::other), 20'000'000);
  EXPECT_LT(ns(timer.last_step(), Phase::forward), 20'000'000);
}

TEST_F(StepTimerTest, LoaderAloneEndsSteps) {
  StepTimer timer(identity_);
  for (int batch = 0; batch < 4; ++batch) {
    timer.request_batch(batch % 2 == 0);
    timer.add_batch({.tokens = 5, .samples = 1, .padding = 0});
  }
  timer.request_batch(true);  // the end of the epoch
  timer.request_batch(true);  // and the next one's first batch
  EXPECT_EQ(timer.totals().steps, 2);
  EXPECT_EQ(timer.totals().counts.tokens, 20);
}

TEST_F(StepTimerTest, WaitingForAnyRangeIsTimed) {
  StepTimer timer(identity_);
  timer.add_model(&kModel);
  struct Slow {
    struct Iterator {
      int at;
      int operator*() const { return at; }
      void operator++() {
        work_for_us(2000);
        ++at;
      }
      bool operator!=(const Iterator& other) const { return at != other.at; }
    };
    static Iterator begin() { return {0}; }
    static Iterator end() { return {3}; }
  } slow;
  int seen = 0;
  for (const int batch : timed_batches(timer, slow)) {
    EXPECT_EQ(batch, seen++);
    timer.begin_training_forward(&kModel);
    timer.note_synchronised(&kModel);
  }
  timer.finish();
  EXPECT_EQ(seen, 3);
  // The wait for the end belongs to a fourth step, which has no backward and does not end.
  EXPECT_EQ(timer.totals().steps, 3);
  EXPECT_EQ(ns(timer.last_step(), Phase::data_wait) >= 2'000'000, true);
}

}  // namespace
}  // namespace lockstep::profile
