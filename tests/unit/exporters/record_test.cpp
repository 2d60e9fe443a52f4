#include "exporters/record/record.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <numeric>
#include <thread>

#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::record {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kMs = 1'000'000;

Identity rank_of_four(int rank) {
  return {
      .job_id = 77, .step_id = 2, .rank = rank, .size = 4, .local_rank = 1, .node = "n2", .program = "train"};
}

std::uint64_t sum(const std::array<std::uint64_t, kPhases>& phases) {
  return std::accumulate(phases.begin(), phases.end(), std::uint64_t{0});
}

class RecordTest : public ::testing::Test {
 protected:
  void overwrite(std::size_t offset, const std::string& bytes) const {
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }

  lockstep::testing::TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "rank-000003.record";
};

TEST_F(RecordTest, ReaderSeesWhatTheRankWrote) {
  Writer writer(path_, rank_of_four(3));
  writer.add_bytes_read(1000);
  writer.add_phase(Phase::forward, 30 * kMs);
  writer.add_phase(Phase::backward, 60 * kMs);
  writer.add_comm(5 * kMs, 2 * kMs, 1);
  writer.add_comm(5 * kMs, 3 * kMs, 2);
  writer.set_loss_scale(1024);
  writer.end_step(100 * kMs, 12345, {.tokens = 512, .samples = 4, .padding = 8});

  const Snapshot seen = Reader(path_).read();
  EXPECT_EQ(seen.identity.job_id, 77);
  EXPECT_EQ(seen.identity.step_id, 2);
  EXPECT_EQ(seen.identity.rank, 3);
  EXPECT_EQ(seen.identity.size, 4);
  EXPECT_EQ(seen.identity.local_rank, 1);
  EXPECT_EQ(seen.identity.node, "n2");
  EXPECT_EQ(seen.identity.program, "train");
  EXPECT_EQ(seen.process_id, ::getpid());
  EXPECT_EQ(seen.counters.steps, 1);
  EXPECT_EQ(seen.counters.phase_ns[index(Phase::forward)], 30 * kMs);
  EXPECT_EQ(seen.counters.phase_ns[index(Phase::other)], 10 * kMs);
  EXPECT_EQ(seen.counters.tokens, 512);
  EXPECT_EQ(seen.counters.samples, 4);
  EXPECT_EQ(seen.counters.padding, 8);
  EXPECT_EQ(seen.counters.bytes_read, 1000);
  EXPECT_EQ(seen.counters.loss_scale, 1024);
  EXPECT_EQ(seen.counters.comm_transfer_ns, 10 * kMs);
  EXPECT_EQ(seen.counters.comm_wait_ns, 5 * kMs);
  ASSERT_EQ(seen.steps.size(), 1);
  EXPECT_EQ(seen.steps[0].step_ns, 100 * kMs);
  EXPECT_EQ(seen.steps[0].end_ns, 12345);
  EXPECT_EQ(seen.steps[0].late_rank, 2);  // the longer of the two waits
  EXPECT_TRUE(seen.alive);
}

TEST_F(RecordTest, ReaderSeesWhatTheProcessUses) {
  Writer writer(path_, rank_of_four(3));
  EXPECT_FALSE(Reader(path_).read().resources.has_value()) << "before the first sample";
  for (const std::uint64_t build_ns : {70, 30})
    writer.add_loader_work({.build_ns = build_ns, .user_ns = 20, .system_ns = 10, .delay_ns = 5});
  writer.add_loader_buffers(4096);
  writer.add_launch(6);
  for (const std::uint64_t bytes : {100, 20}) writer.add_collective(Collective::reduce_scatter, bytes, 40);
  writer.end_step(100, 1100, {});
  writer.end_step(100, 1200, {});
  writer.set_resources({.sampled_ns = 1300, .user_ns = 900, .memory_peak_bytes = 5000, .cpu_limit = 2.5});
  const auto used = Reader(path_).read().resources;
  ASSERT_TRUE(used.has_value());
  EXPECT_EQ(used->user_ns, 900);
  EXPECT_EQ(used->memory_peak_bytes, 5000);
  EXPECT_EQ(used->cpu_limit, 2.5);
  EXPECT_EQ(used->loader_build_ns, 100);
  EXPECT_EQ(used->loader_user_ns, 40);
  EXPECT_EQ(used->loader_system_ns, 20);
  EXPECT_EQ(used->loader_delay_ns, 10);
  EXPECT_EQ(used->loader_buffer_bytes, 4096);
  EXPECT_EQ(used->launch_ns, 6);
  const CollectiveTotals& scattered = used->collectives[static_cast<std::size_t>(Collective::reduce_scatter)];
  EXPECT_DOUBLE_EQ(scattered.algorithm_bandwidth(), 1.5e9);
  EXPECT_EQ(used->collectives[0].algorithm_bandwidth(), 0) << "not measured";
  EXPECT_EQ(used->first_step_ns, 1000);
}

// As nccl-tests/doc/PERFORMANCE.md defines them.
TEST(BusFactor, IsThatOfNcclsTests) {
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_reduce, 4), 1.5);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::reduce_scatter, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::all_gather, 4), 0.75);
  EXPECT_DOUBLE_EQ(bus_factor(Collective::broadcast, 4), 1);
  EXPECT_EQ(bus_factor(Collective::all_reduce, 1), 0);
}

TEST_F(RecordTest, PhasesAlwaysAddUpToTheStep) {
  Writer writer(path_, rank_of_four(0));
  writer.add_phase(Phase::forward, 70);
  writer.end_step(50, 0, {});  // the phases explain more than the step
  writer.add_phase(Phase::data_wait, 20);
  writer.end_step(50, 0, {});
  const Snapshot seen = Reader(path_).read();
  for (const Step& step : seen.steps) EXPECT_EQ(sum(step.phase_ns), step.step_ns);
  EXPECT_EQ(sum(seen.counters.phase_ns), seen.counters.step_ns);
  EXPECT_EQ(seen.counters.step_ns, 120);
}

TEST_F(RecordTest, WaitForARankIsForgottenWithItsStep) {
  Writer writer(path_, rank_of_four(0));
  writer.add_comm(0, 10, 3);
  writer.end_step(50, 0, {});
  writer.end_step(50, 0, {});
  const Snapshot seen = Reader(path_).read();
  EXPECT_EQ(seen.steps[0].late_rank, 3);
  EXPECT_EQ(seen.steps[0].comm_wait_ns, 10);
  EXPECT_EQ(seen.steps[1].late_rank, -1);
  EXPECT_EQ(seen.steps[1].comm_wait_ns, 0);
}

TEST_F(RecordTest, HistogramCountsAStepInTheBucketThatHoldsIt) {
  Writer writer(path_, rank_of_four(0));
  writer.end_step(100'000, 0, {});          // exactly the first bound
  writer.end_step(100'001, 0, {});          // just above it
  writer.end_step(200'000'000'000, 0, {});  // longer than all
  const Histogram& steps = Reader(path_).read().counters.step_histogram;
  EXPECT_EQ(steps[0], 1);
  EXPECT_EQ(steps[1], 1);
  EXPECT_EQ(steps[kBuckets - 1], 1);
  EXPECT_EQ(std::accumulate(steps.begin(), steps.end(), std::uint64_t{0}), 3);
}

TEST_F(RecordTest, BucketBoundsRiseFromATenthOfAMillisecondToAHundredSeconds) {
  EXPECT_EQ(kBucketBounds.front(), 100'000);
  EXPECT_EQ(kBucketBounds.back(), 100'000'000'000);
  EXPECT_TRUE(std::is_sorted(kBucketBounds.begin(), kBucketBounds.end()));
}

TEST_F(RecordTest, RingKeepsTheLastStepsInOrder) {
  Writer writer(path_, rank_of_four(0));
  constexpr std::uint64_t kSteps = kRingSteps + 100;
  for (std::uint64_t step = 0; step < kSteps; ++step) writer.end_step(step + 1, step, {});
  const Reader reader(path_);
  const Snapshot seen = reader.read();
  ASSERT_EQ(seen.steps.size(), kRingSteps - 1);  // the writer may be using one slot
  for (std::size_t i = 0; i < seen.steps.size(); ++i) {
    EXPECT_EQ(seen.steps[i].index, kSteps - seen.steps.size() + i);
    EXPECT_EQ(seen.steps[i].step_ns, seen.steps[i].index + 1);
  }
  EXPECT_EQ(reader.read(10).steps.size(), 10);
  EXPECT_EQ(reader.read(10).steps.back().index, kSteps - 1);
  EXPECT_TRUE(reader.read(0).steps.empty());
}

// The rank writes steps with numbers that depend on each other, while a reader reads; both as fast as they
// can.
TEST_F(RecordTest, SnapshotsAreConsistentWhileTheRankWrites) {
  Writer writer(path_, rank_of_four(0));
  std::atomic<bool> hurry{true};  // without pauses nearly every read is overtaken, with pauses few are
  const std::jthread rank([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      writer.add_phase(Phase::forward, 3);
      writer.add_phase(Phase::backward, 4);
      writer.end_step(10, 0, {.tokens = 7, .samples = 1, .padding = 2});
      if (hurry.load(std::memory_order_relaxed)) continue;
      const timespec pause = {.tv_sec = 0, .tv_nsec = 1000};
      ::nanosleep(&pause, nullptr);
    }
  });
  const Reader reader(path_);
  std::uint64_t seen_steps = 0;
  int good = 0;
  for (int i = 0; i < 6000; ++i) {
    hurry = i < 3000;
    Snapshot seen;
    try {
      seen = reader.read();
    } catch (const Error&) {
      continue;  // overtaken many times in a row: refused, never torn
    }
    ++good;
    const std::uint64_t steps = seen.counters.steps;
    EXPECT_GE(steps, seen_steps);
    seen_steps = steps;
    ASSERT_EQ(seen.counters.tokens, steps * 7);
    ASSERT_EQ(seen.counters.padding, steps * 2);
    ASSERT_EQ(seen.counters.step_ns, steps * 10);
    ASSERT_EQ(seen.counters.phase_ns[index(Phase::forward)], steps * 3);
    ASSERT_EQ(seen.counters.phase_ns[index(Phase::other)], steps * 3);
    ASSERT_EQ(seen.counters.step_histogram[0], steps);
    ASSERT_EQ(seen.counters.phase_histogram[kPhases - 1][0], steps);
    for (const Step& step : seen.steps) ASSERT_EQ(sum(step.phase_ns), 10U);
    for (std::size_t k = 1; k < seen.steps.size(); ++k) {
      ASSERT_EQ(seen.steps[k].index, seen.steps[k - 1].index + 1);
    }
  }
  EXPECT_GT(good, 300);
}

TEST_F(RecordTest, AKilledRankIsSeenAsDeadAndItsLastStepsAreReadable) {
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    Writer writer(path_, rank_of_four(2));
    for (int step = 0; step < 5; ++step) writer.end_step(kMs, 0, {.tokens = 10});
    writer.set_doing(Phase::backward, 99);
    (void)!::write(ready[1], "x", 1);
    for (;;) ::pause();
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const Reader reader(path_);
  EXPECT_TRUE(reader.read().alive);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Snapshot seen = reader.read();
  EXPECT_FALSE(seen.alive);
  EXPECT_EQ(seen.finished_unix_ns, 0);
  EXPECT_EQ(seen.counters.steps, 5);
  EXPECT_EQ(seen.counters.tokens, 50);
  EXPECT_EQ(seen.doing, Phase::backward);
  EXPECT_EQ(seen.doing_since_ns, 99);
  ::close(ready[0]);
  ::close(ready[1]);
}

// A rank that is killed at the end of a step has changed only the copy of the counters that readers do not
// use yet.
TEST_F(RecordTest, AnInterruptedStepChangesNothingForReaders) {
  { Writer(path_, rank_of_four(0)).end_step(10, 0, {.tokens = 7}); }
  const Snapshot before = Reader(path_).read();  // two publications: the step and the end
  overwrite(offsetof(File, counters) + sizeof(Counters), std::string(sizeof(Counters) / 2, '\xff'));
  const Snapshot after = Reader(path_).read();
  EXPECT_EQ(after.counters.tokens, before.counters.tokens);
  EXPECT_EQ(after.counters.steps, 1);
}

TEST_F(RecordTest, AFinishedRankIsSeenAsFinished) {
  {
    Writer writer(path_, rank_of_four(0));
    writer.end_step(10, 0, {});
    writer.finish();
    const Snapshot seen = Reader(path_).read();
    EXPECT_FALSE(seen.alive);
    EXPECT_GT(seen.finished_unix_ns, seen.start_unix_ns);
  }
  EXPECT_GT(Reader(path_).read().finished_unix_ns, 0);
}

TEST_F(RecordTest, FileIsReadableForTheGroupWhateverTheUmask) {
  const mode_t umask_before = ::umask(077);
  const Writer writer(path_, rank_of_four(0));
  ::umask(umask_before);
  struct stat status = {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0640);
}

TEST_F(RecordTest, NewRecordReplacesAnOldOneAndLeavesNoTemporaryFile) {
  { Writer(path_, rank_of_four(0)).end_step(10, 0, {}); }
  const Writer second(path_, rank_of_four(0));
  EXPECT_EQ(Reader(path_).read().counters.steps, 0);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(RecordTest, FolderThatDoesNotExistIsAnErrorThatNamesTheFile) {
  const auto path = folder_ / "none/rank-000000.record";
  EXPECT_THAT([&] { Writer(path, rank_of_four(0)); }, ThrowsMessage<Error>(HasSubstr(path.string())));
}

TEST_F(RecordTest, FullFileSystemIsAnErrorAtTheStart) {
  // A limit on the file's size stands in for a full file system: posix_fallocate fails the same way
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit limit = {sizeof(File) / 2, sizeof(File) / 2};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      const Writer writer(path_, rank_of_four(0));
    } catch (const Error& error) {
      ::_exit(std::string(error.what()).find("reserving its space") != std::string::npos ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
}

TEST_F(RecordTest, ReaderRefusesFilesThatAreNotRecords) {
  { const Writer writer(path_, rank_of_four(0)); }
  const auto refuses = [&](const std::filesystem::path& path, const std::string& why) {
    EXPECT_THAT([&] { Reader reader(path); },
                ThrowsMessage<Error>(::testing::AllOf(HasSubstr(path.string()), HasSubstr(why))));
  };
  refuses(folder_ / "none", "No such file");
  std::filesystem::create_symlink(path_, folder_ / "link");
  refuses(folder_ / "link", "symbolic link");
  refuses(folder_.path(), "not a regular file");
  ASSERT_EQ(::mkfifo((folder_ / "fifo").c_str(), 0600), 0);
  refuses(folder_ / "fifo", "not a regular file");
  std::ofstream(folder_ / "empty").close();
  refuses(folder_ / "empty", "too short");

  overwrite(offsetof(Header, version), std::string("\x09\0\0\0", 4));
  refuses(path_, "version 9, this program reads version 3");
  overwrite(0, "NOTMAGIC");
  refuses(path_, "not a record");
}

TEST_F(RecordTest, ReaderRefusesAWrongSize) {
  { const Writer writer(path_, rank_of_four(0)); }
  const Reader open_before(path_);
  std::filesystem::resize_file(path_, sizeof(File) - 1);
  EXPECT_THAT([&] { Reader reader(path_); }, ThrowsMessage<Error>(HasSubstr("bytes, a record")));
  std::filesystem::resize_file(path_, offsetof(File, counters) + 10);
  EXPECT_THAT([&] { open_before.read(); }, ThrowsMessage<Error>(HasSubstr("truncated")));
  std::filesystem::resize_file(path_, sizeof(File) + 1);
  EXPECT_THAT([&] { Reader reader(path_); }, ThrowsMessage<Error>(HasSubstr("bytes, a record")));
}

TEST_F(RecordTest, ReaderSurvivesInvalidCounters) {
  { const Writer writer(path_, rank_of_four(0)); }
  overwrite(offsetof(File, live), std::string(sizeof(Live), '\xff'));
  overwrite(offsetof(File, counters), std::string(2 * sizeof(Counters), '\xff'));
  overwrite(offsetof(File, ring), std::string(sizeof(Step) * kRingSteps, '\xff'));
  const Snapshot seen = Reader(path_).read();
  EXPECT_LE(seen.steps.size(), kRingSteps);
  EXPECT_FALSE(seen.doing.has_value());
  (void)seen.last_unix_ns();
}

TEST_F(RecordTest, ImpossibleRankIsRefused) {
  { const Writer writer(path_, rank_of_four(-1)); }
  EXPECT_THAT([&] { Reader reader(path_); }, ThrowsMessage<Error>(HasSubstr("rank -1 of 4")));
}

TEST_F(RecordTest, ReaderOpensAFileInAnOpenFolder) {
  { const Writer writer(path_, rank_of_four(3)); }
  const int folder = ::open(folder_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  EXPECT_EQ(Reader(folder, "rank-000003.record").identity().rank, 3);
  EXPECT_THROW(Reader(folder, "rank-000004.record"), Error);
  ::close(folder);
}

}  // namespace
}  // namespace lockstep::record
