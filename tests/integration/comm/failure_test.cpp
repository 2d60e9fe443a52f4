// If one rank fails, the whole job ends soon, with an exit code other than 0 and a line that names the rank
// and the reason.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <thread>

#include "common/clock.h"
#include "common/process.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

struct Job {
  ProcessResult result;
  double seconds = 0;
};

// Seconds for the start of the launcher and the ranks, and for the launcher's end, on a loaded machine. A job
// that does not end would last for a minute longer.
constexpr double kLaunch = 40;

// `wrong`: the rank that fails; the last one by default.
Job run(const std::string& how, const std::string& ranks = "2", const std::string& timeout = "60",
        const std::string& wrong = "") {
  const testing::MpiMemory memory;
  ::setenv("LOCKSTEP_TIMEOUT", timeout.c_str(), 1);
  ::setenv("FAILING_JOB_OF", std::to_string(::getpid()).c_str(), 1);
  std::vector<std::string> program = {how.starts_with("ddp-") ? FAILING_DDP_JOB : FAILING_JOB, how};
  if (!wrong.empty()) program.push_back(wrong);
  const std::uint64_t begin = monotonic_ns();
  Job job;
  job.result = run_process(testing::mpi_command(ranks, program));
  job.seconds = seconds_between(begin, monotonic_ns());
  ::unsetenv("FAILING_JOB_OF");
  return job;
}

// The lines in which ranks report a failure.
std::vector<std::string> verdicts(const Job& job) {
  std::vector<std::string> lines;
  std::istringstream text(job.result.error);
  for (std::string line; std::getline(text, line);) {
    if (line.starts_with("lockstep: rank ")) lines.push_back(line);
  }
  return lines;
}

std::string verdict(const Job& job) {
  const std::vector<std::string> lines = verdicts(job);
  return lines.empty() ? "" : lines.front();
}

// The running processes that run() has started. Zombies do not count: they have no environment.
std::vector<std::string> running_processes() {
  const std::string mark = "FAILING_JOB_OF=" + std::to_string(::getpid()) + '\0';
  std::vector<std::string> left;
  for (const auto& process : std::filesystem::directory_iterator("/proc")) {
    std::ifstream file(process.path() / "environ", std::ios::binary);
    const std::string environment{std::istreambuf_iterator<char>(file), {}};
    if (environment.find(mark) != std::string::npos) left.push_back(process.path());
  }
  return left;
}

// The same, after processes that mpirun has just killed had time to end.
std::vector<std::string> processes_left() {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  auto left = running_processes();
  for (; !left.empty() && std::chrono::steady_clock::now() < limit; left = running_processes()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return left;
}

// Shared memory that is left, except the folder of the records, which other jobs use too.
std::vector<std::string> shared_memory_left() {
  std::vector<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    const std::string name = entry.path().filename();
    if (name.find("lockstep") != std::string::npos && !entry.is_directory()) left.push_back(name);
  }
  return left;
}

// Expects that the job failed soon, with one line, and left nothing.
void expect_to_have_ended(const Job& job, double seconds) {
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, seconds + kLaunch) << job.result.error;
  EXPECT_THAT(verdicts(job), SizeIs(1)) << job.result.error;
  EXPECT_THAT(processes_left(), IsEmpty());
  EXPECT_THAT(shared_memory_left(), IsEmpty());
}

std::string here(const std::string& text) {
  return text + " on " + host_name();
}

TEST(Job, SucceedsIfNothingIsWrong) {
  const Job job = run("well");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
  EXPECT_THAT(job.result.error,
              HasSubstr("lockstep: 2 ranks on 1 node (shared memory); rank 0 computes with"));
}

TEST(Job, EndsWithTheCodeOfWorldExit) {
  const Job job = run("world-exit");
  EXPECT_EQ(job.result.exit_code, 75) << job.result.error;
  EXPECT_THAT(verdicts(job), IsEmpty());
  EXPECT_THAT(job.result.output, HasSubstr("not flushed by the program"));
}

TEST(Job, HasOneRankWithoutALauncher) {
  const auto result = run_process({FAILING_JOB, "well"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.error, HasSubstr("lockstep: 1 rank on 1 node (single)"));
}

TEST(Job, RaisesItsLimitOfOpenFiles) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  const auto result = run_process({"sh", "-c", "ulimit -Sn 300; exec \"$0\" open-files", FAILING_JOB});
  EXPECT_EQ(result.output, fmt::format("{}\n", limit.rlim_max)) << result.error;
}

TEST(Job, EndsWithALineWhenAnExceptionLeavesMain) {
  const Job job = run("throw");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 5 + kLaunch);
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: rank 1 on " + host_name() +
                                          ": sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWithoutMessagesOfMpi) {
  const bool of_open_mpi_5 =
      run_process({"mpirun", "--version"}).output.find("(Open MPI) 5") != std::string::npos;
  for (const std::string how : {"throw", "leaves", "other-count"}) {
    for (const std::string wrong : {"0", "1"}) {
      const Job job = run(how, "2", "60", wrong);
      EXPECT_EQ(job.result.exit_code, 1);
      EXPECT_THAT(job.result.error, Not(HasSubstr("MPI_ABORT")));
      // The launcher of Open MPI 5 has a message of its own about every abort, and no option that leaves it out.
      if (!of_open_mpi_5) {
        EXPECT_THAT(job.result.error, Not(HasSubstr("-----")));
      }
    }
  }
}

TEST(Job, EndsWithALineEvenWithoutALauncher) {
  const auto result = run_process({FAILING_JOB, "throw"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("lockstep: rank 0 on " + host_name() +
                                      ": sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWhenMainCatchesTheExceptionOfOneRank) {
  const Job job = run("caught");
  EXPECT_EQ(job.result.exit_code, 3) << job.result.error;
  EXPECT_LT(job.seconds, 5 + kLaunch);
  EXPECT_THAT(job.result.error, HasSubstr("training failed: sample 17 of shard-000003.tar is broken\n"));
}

TEST(Job, EndsWhenMainCatchesTheErrorOfARankThatCannotStart) {
  const Job job = run("no-start");
  EXPECT_EQ(job.result.exit_code, 3) << job.result.error;
  EXPECT_LT(job.seconds, 5 + kLaunch);
  EXPECT_THAT(job.result.error, HasSubstr("training failed: SLURM_JOB_ID='none' is not an integer\n"));
}

TEST(Job, EndsWithALineWhenAnExceptionComesAfterWorld) {
  const Job job = run("afterwards");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_THAT(job.result.error, HasSubstr(": the report cannot be written\n"));
  EXPECT_THAT(job.result.error, Not(HasSubstr("MPI_Abort")));
}

TEST(Job, ContinuesWhenAForkedProcessExits) {
  const Job job = run("forks");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
}

TEST(Job, AcceptsAVeryLongTimeout) {
  const Job job = run("well", "2", "9999999999");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
}

TEST(Job, UsesTheOutermostOfNestedThreadNumbers) {
  ::setenv("OMP_NUM_THREADS", "2,1", 1);
  const Job job = run("well");
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
  EXPECT_THAT(job.result.error, HasSubstr("rank 0 computes with 2 threads"));
}

TEST(Job, EndsWhenOneRankExits) {
  const Job job = run("exit");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_LT(job.seconds, 5 + kLaunch);
  EXPECT_THAT(job.result.error,
              HasSubstr("lockstep: rank 1 on " + host_name() + ": the program exited before World ended"));
}

TEST(Job, EndsAtOnceWhenARankIsKilledAndNamesIt) {
  for (const std::string wrong : {"0", "1", "2"}) {
    const Job job = run("killed", "3", "60", wrong);
    expect_to_have_ended(job, 5);
    EXPECT_THAT(job.result.error,
                HasSubstr("lockstep: " + here("rank " + wrong) + " is gone (its process ended); rank "));
    EXPECT_THAT(job.result.error, HasSubstr("is in all_reduce of bucket 7 (4 bytes)\n"));
  }
}

TEST(Job, EndsAtOnceWhenARankIsKilledInsideAnOperation) {
  const Job job = run("killed-inside");
  expect_to_have_ended(job, 5);
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: " + here("rank 1") + " is gone (its process ended)"));
}

TEST(Job, EndsAtOnceWhenARankExitsWithoutHandlers) {
  const Job job = run("quick-exit");
  expect_to_have_ended(job, 5);
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: " + here("rank 1") + " is gone (its process ended)"));
}

TEST(Job, EndsAtOnceEvenIfAChildOfTheKilledRankLivesOn) {
  const Job job = run("killed-with-child");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: " + here("rank 1") + " is gone (its process ended)"));
}

// Rank 0 has 32 other nodes below it, so it hears of rank 34 through rank 1.
TEST(Job, EndsAtOnceWhenARankTwoLevelsBelowRankZeroIsKilled) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);
  const Job job = run("killed", "35");
  ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  EXPECT_NE(job.result.exit_code, 0);
  EXPECT_THAT(verdicts(job), SizeIs(1)) << job.result.error;
  EXPECT_THAT(verdict(job), HasSubstr("lockstep: " + here("rank 34") + " is gone (its process ended); "));
  EXPECT_THAT(processes_left(), IsEmpty());
}

TEST(Job, EndsAfterTheTimeoutWhenARankIsStopped) {
  const Job job = run("stopped", "3", "6");
  expect_to_have_ended(job, 6 + 5);
  EXPECT_THAT(
      verdict(job),
      ContainsRegex("lockstep: rank [01] on " + host_name() +
                    ": all_reduce of bucket 7 \\(4 bytes\\) did not end within 6 s \\(LOCKSTEP_TIMEOUT\\): "
                    "rank 2 on " +
                    host_name() +
                    " does not answer \\(stopped or cut off\\?\\); "
                    "rank [01] on " +
                    host_name() + " has waited in the same operation for [0-9]+.[0-9] s"));
}

TEST(Job, EndsAfterTheTimeoutWhenRankZeroIsStopped) {
  const Job job = run("stopped", "3", "6", "0");
  expect_to_have_ended(job, 6 + 5);
  EXPECT_THAT(verdict(job), ContainsRegex("rank [12] on .*: all_reduce of bucket 7 \\(4 bytes\\) did not "
                                          "end within 6 s \\(LOCKSTEP_TIMEOUT\\): rank 0 on .* does not "
                                          "answer"));
}

TEST(Job, EndsAfterTheTimeoutWhenARankDoesNotStartAndSaysThatItIsMpiInit) {
  const Job job = run("late-start", "2", "2");
  expect_to_have_ended(job, 2 + 5);
  EXPECT_THAT(verdict(job),
              HasSubstr(here("rank 0") + ": MPI_Init did not end within 2 s (LOCKSTEP_TIMEOUT); MPI "
                                         "starts the ranks together, and one is missing"));
}

TEST(Job, EndsAfterTheTimeoutWhenARankIsBusy) {
  const Job job = run("busy", "3", "6");
  expect_to_have_ended(job, 6 + 5);
  EXPECT_THAT(
      verdict(job),
      ContainsRegex(here("rank 2") +
                    " has called no operation for [0-9]+.[0-9] s \\(its last operation: barrier of step"));
}

// The control channel names the busy rank; without it, rank 0 could only guess.
TEST(Job, NamesTheBusyRankAlsoIfTheControlChannelCannotPoll) {
  const Job job = run("poll-fails", "2", "2");
  expect_to_have_ended(job, 2 + 5);
  EXPECT_THAT(verdict(job), HasSubstr(here("rank 1") + " has called no operation for "));
  EXPECT_THAT(job.result.error, HasSubstr("lockstep: the control channel of " + here("rank 0") +
                                          " cannot wait for messages (Invalid argument)"));
}

// Its connection stays open, as with a machine that loses power.
TEST(Job, EndsLongBeforeTheTimeoutWhenANodeStopsAnswering) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);
  const Job job = run("unreachable", "2", "60");
  ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  expect_to_have_ended(job, 12);
  EXPECT_THAT(verdict(job), HasSubstr(here("rank 1") +
                                      " has not answered for 10 s (its node lost power, or is "
                                      "cut off); " +
                                      here("rank 0") + " is in all_reduce of bucket 7"));
}

// Rank 0 has a descriptor for one of the two other nodes.
TEST(Job, SaysThatNoDescriptorIsLeftForTheControlChannel) {
  ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);
  const Job job = run("few-descriptors", "3");
  ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  EXPECT_THAT(
      job.result.error,
      HasSubstr(here("rank 0") + ": no file descriptor is left: raise the limit of open "
                                 "files (ulimit -Hn); a rank that hangs or ends is reported only on its "
                                 "own node"));
}

// With one rank per node, ranks do not share memory, as on several nodes.
TEST(Job, EndsAtOnceWhenARankLeavesEarly) {
  for (const std::string nodes : {"one", "several"}) {
    if (nodes == "several") ::setenv("LOCKSTEP_RANKS_PER_NODE", "1", 1);
    for (const std::string wrong : {"0", "1", "2"}) {
      const Job job = run("leaves", "3", "60", wrong);
      expect_to_have_ended(job, 5);
      EXPECT_THAT(verdict(job), HasSubstr("all_reduce of bucket 7"));
      EXPECT_THAT(verdict(job), HasSubstr("rank " + wrong));
      EXPECT_THAT(verdict(job), ContainsRegex("left World|calls the end of World"));
    }
    ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  }
}

TEST(Job, EndsAtOnceWhenARankDoesMoreSteps) {
  const Job job = run("more-steps");
  expect_to_have_ended(job, 5);
  EXPECT_THAT(verdict(job), HasSubstr("all_reduce of bucket 0 (4 bytes)"));
  EXPECT_THAT(verdict(job), HasSubstr("rank 0 on " + host_name() + " left World"));
}

// At once, not by the timeout. Data of other sizes travels with the request, beside it, or only on one of the ranks.
TEST(Job, EndsWhenRanksDoDifferentOperationsAndNamesBoth) {
  const std::map<std::string, std::vector<std::string>> both = {
      {"other-operation", {"all_reduce of bucket 7", "barrier of evaluation"}},
      {"other-count", {"(1 × f32|4 bytes)", "(3 × f32|12 bytes)"}},
      {"other-size", {"(1 × f32|4 bytes)", "(1000000 × f32|4000000 bytes)"}},
      {"other-length", {"(20000 × f32|80000 bytes)", "(30000 × f32|120000 bytes)"}},
      {"other-type", {"(f32|4 bytes)", "(f64|8 bytes)"}}};
  for (const std::string per_node : {"2", "1"}) {
    ::setenv("LOCKSTEP_RANKS_PER_NODE", per_node.c_str(), 1);
    ::setenv("OMPI_MCA_btl", "self,tcp", 1);  // as between nodes
    ::setenv("OMPI_MCA_btl_tcp_disable_family", "6",
             1);  // Open MPI 5 finds no pairs where an interface has both families
    for (const auto& [how, operations] : both) {
      SCOPED_TRACE(how + ", ranks per node: " + per_node);
      const Job job = run(how);
      expect_to_have_ended(job, 5);
      const std::string line = verdict(job);
      EXPECT_THAT(line, AllOf(HasSubstr("rank 0"), HasSubstr("rank 1"), HasSubstr(host_name())));
      EXPECT_THAT(line, HasSubstr("all_reduce of bucket 7"));
      for (const auto& operation : operations)
        EXPECT_THAT(line, ContainsRegex("[^0-9]" + operation + "[^0-9]"));
    }
    ::unsetenv("OMPI_MCA_btl");
    ::unsetenv("OMPI_MCA_btl_tcp_disable_family");
    ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  }
}

TEST(Job, EndsWhenLabelsOrStepsOfAnOperationDiffer) {
  for (const std::string per_node : {"2", "1"}) {
    ::setenv("LOCKSTEP_RANKS_PER_NODE", per_node.c_str(), 1);
    const Job label = run("other-label");
    expect_to_have_ended(label, 5);
    EXPECT_THAT(verdict(label), ContainsRegex("all_reduce of bucket 7 .*all_reduce of bucket 8 |"
                                              "all_reduce of bucket 8 .*all_reduce of bucket 7 "));
    const Job step = run("other-step");
    expect_to_have_ended(step, 5);
    EXPECT_THAT(verdict(step), ContainsRegex("all_reduce of bucket 7 .*all_reduce of bucket 7 in step 17 |"
                                             "all_reduce of bucket 7 in step 17 .*all_reduce of bucket 7 "));
    ::unsetenv("LOCKSTEP_RANKS_PER_NODE");
  }
}

TEST(Job, EndsWhenOneRanksOptimizerIsAStepAhead) {
  for (const std::string how : {"ddp-skips-a-step", "ddp-skips-a-step-over-ranks"}) {
    const Job job = run(how);
    expect_to_have_ended(job, 5);
    EXPECT_THAT(verdict(job), HasSubstr("rank 0 calls all_reduce of the step's message in step 3"));
    EXPECT_THAT(verdict(job), HasSubstr("rank 1 calls all_reduce of the step's message in step 2"));
  }
}

TEST(Job, EndsWhenOneRankDoesAStepWithoutSynchronisation) {
  for (const std::string how : {"ddp-does-not-synchronise", "ddp-does-not-synchronise-over-ranks"}) {
    const Job job = run(how);
    expect_to_have_ended(job, 5);
    EXPECT_THAT(verdict(job), HasSubstr("rank 0 calls all_reduce of the step's message in step 2"));
    EXPECT_THAT(verdict(job), HasSubstr("rank 1 calls all_reduce of the step's message in step 3"));
  }
}

TEST(Job, EndsWhenTensorsDifferAndNamesTheirTypesAndShapes) {
  const Job shape = run("ddp-other-shape");
  expect_to_have_ended(shape, 5);
  EXPECT_THAT(verdict(shape), AllOf(HasSubstr("rank 0 calls all_reduce of hits (Double [2, 3])"),
                                    HasSubstr("rank 1 calls all_reduce of hits (Double [3, 2])")));
  const Job type = run("ddp-other-type");
  expect_to_have_ended(type, 5);
  EXPECT_THAT(verdict(type), AllOf(HasSubstr("(Double [2, 3])"), HasSubstr("(Long [2, 3])")));
}

TEST(Job, EndsWhenOptionsOfJoinDiffer) {
  const Job job = run("ddp-other-join");
  expect_to_have_ended(job, 5);
  EXPECT_THAT(verdict(job),
              AllOf(HasSubstr("all_reduce of the ranks with data (2 × u8, max)"),
                    HasSubstr("the ranks with data, divided by the active ranks (2 × u8, max)")));
}

TEST(Job, SucceedsIfRanksHaveDifferentNumbersOfUnsynchronisedMicroBatches) {
  const Job job = run("ddp-well", "3");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
}

TEST(Job, EndsAfterTheTimeoutEvenIfNoRankWaits) {
  const Job job = run("unmatched", "2", "6");
  expect_to_have_ended(job, 6 + 5);
  EXPECT_THAT(verdict(job), HasSubstr("broadcast of nothing"));
}

TEST(Job, SucceedsIfARankIsLateButBeforeTheTimeout) {
  const Job job = run("late", "2", "5");
  EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
  EXPECT_THAT(verdicts(job), IsEmpty());
}

TEST(Job, SucceedsIfARankLeavesWorldBeforeTheOthers) {
  for (const std::string first : {"0", "1", "2"}) {
    const Job job = run("own-mpi", "3", "60", first);
    EXPECT_EQ(job.result.exit_code, 0) << job.result.error;
    EXPECT_THAT(verdicts(job), IsEmpty());
  }
}

TEST(Job, NamesTheOverdueOperationWithoutAControlChannelToo) {
  ::setenv("LOCKSTEP_WATCH", "off", 1);
  const Job job = run("stopped", "2", "6");
  ::unsetenv("LOCKSTEP_WATCH");
  expect_to_have_ended(job, 6 + 5);
  EXPECT_THAT(
      verdict(job),
      HasSubstr(
          here("rank 0") +
          ": all_reduce of bucket 7 (4 bytes) did not end within 6 s (LOCKSTEP_TIMEOUT); another rank"));
}

}  // namespace
}  // namespace lockstep
