#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/clock.h"
#include "exporters/record/record.h"
#include "exporters/top/live.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::top {
namespace {

using record::Phase;
using record::Writer;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t kMs = 1'000'000;

class TopTest : public ::testing::Test {
 protected:
  Writer& rank(int rank, int size) {
    const record::Identity identity{
        .job_id = 7, .rank = rank, .size = size, .node = "n1", .program = "train"};
    ranks_.push_back(std::make_unique<Writer>(folder_ / fmt::format("rank-{:06}.record", rank), identity));
    return *ranks_.back();
  }

  // A rank that works `own` milliseconds of each step of 100 and waits for `late`.
  static void step(Writer& rank, std::uint64_t own, int late = -1) {
    rank.add_phase(Phase::forward, own * kMs);
    rank.add_phase(Phase::comm_exposed, (100 - own) * kMs);
    rank.add_comm((100 - own) * kMs, late < 0 ? 0 : (100 - own) * kMs, late);
    rank.end_step(100 * kMs, monotonic_ns(), {.tokens = 1000});
  }

  Live live() const { return measure(report::load({folder_.path()}, record::kRecentSteps), monotonic_ns()); }

  lockstep::testing::TemporaryFolder folder_;
  std::vector<std::unique_ptr<Writer>> ranks_;
};

TEST_F(TopTest, ShowsMeansOverTheLastStepsOnly) {
  Writer& writer = rank(0, 1);
  for (int i = 0; i < 100; ++i) {
    writer.add_phase(Phase::data_wait, 900 * kMs);
    writer.end_step(1000 * kMs, 0, {.tokens = 1});
  }
  for (std::size_t i = 0; i < record::kRecentSteps; ++i) step(writer, i % 2 == 0 ? 70 : 90);
  const LiveRank seen = live().ranks.at(0);
  EXPECT_EQ(seen.steps, 132);
  EXPECT_DOUBLE_EQ(seen.step_ms, 100);
  EXPECT_DOUBLE_EQ(seen.own_ms, 80);
  EXPECT_DOUBLE_EQ(seen.tokens_per_second, 10'000);
  EXPECT_DOUBLE_EQ(seen.shares[record::index(Phase::forward)], 0.8);
  EXPECT_DOUBLE_EQ(seen.shares[record::index(Phase::data_wait)], 0);
}

TEST_F(TopTest, NamesTheRankThatOthersWaitFor) {
  for (int i = 0; i < 3; ++i) rank(i, 3);
  for (int k = 0; k < 4; ++k) {
    for (int i = 0; i < 3; ++i) step(*ranks_[i], i == 2 ? 99 : 70, i == 2 ? -1 : 2);
  }
  const Live seen = live();
  EXPECT_EQ(seen.ranks[0].late_rank, 2);
  EXPECT_EQ(seen.ranks[0].wait_ms, 30);
  EXPECT_EQ(seen.ranks[2].late_rank, std::nullopt);
  EXPECT_EQ(seen.median_own_ms, 70);
  const auto lines = to_lines(seen, {.colours = true});
  EXPECT_THAT(lines[1], HasSubstr("rank 2 works longest, +41 % over the median"));
  EXPECT_THAT(lines[4], Not(StartsWith("\x1b")));
  EXPECT_THAT(lines[6], StartsWith("\x1b[31m   2 n1"));
  for (const std::string& line : to_lines(seen, {})) EXPECT_THAT(line, Not(HasSubstr("\x1b")));
}

TEST_F(TopTest, ShowsWhereARankHangsAndForHowLong) {
  Writer& writer = rank(0, 1);
  writer.set_doing(Phase::backward, 5'000 * kMs);
  const report::Run run = report::load({folder_.path()});
  const Live seen = measure(run, 47'000 * kMs);
  EXPECT_EQ(seen.ranks[0].now, Phase::backward);
  EXPECT_EQ(seen.ranks[0].now_seconds, 42);
  EXPECT_THAT(to_lines(seen, {})[4], HasSubstr("backward 42.0 s"));
  EXPECT_EQ(to_json(seen)["ranks"][0]["phase_seconds"], 42);
}

TEST_F(TopTest, RanksThatHaveEndedAndAreMissingAreSaid) {
  step(rank(0, 4), 90);
  ranks_[0]->finish();
  rank(1, 4);
  const Live seen = live();
  EXPECT_EQ(seen.ranks[0].state, "finished");
  EXPECT_EQ(seen.ranks[0].idle_seconds, std::nullopt);
  EXPECT_EQ(seen.ranks[1].state, "running");
  EXPECT_THAT(seen.notes,
              ElementsAre(HasSubstr("2 of 4 ranks"),
                          HasSubstr("these are the ranks on n1; for another node: srun --jobid=7 ")));
  const auto lines = to_lines(seen, {.colours = true});
  EXPECT_THAT(lines[4], StartsWith("\x1b[2m   0 n1   finished"));
  EXPECT_THAT(lines[5], StartsWith("   1 n1   starting"));
}

TEST_F(TopTest, TheTableFitsTheTerminalAndKeepsTheSlowestRanks) {
  for (int i = 0; i < 40; ++i) step(rank(i, 40), i == 33 ? 99 : 50 + i % 7);
  const auto lines = to_lines(live(), {.columns = 60, .rows = 12});
  ASSERT_EQ(lines.size(), 12);
  EXPECT_THAT(lines[4], StartsWith("  33 n1"));
  EXPECT_EQ(lines.back(), "(33 more ranks with a shorter own time)");
  EXPECT_EQ(lines[3].size(), 60);
  EXPECT_EQ(to_lines(live(), {.columns = 10, .rows = 2}).size(), 2);
  EXPECT_EQ(to_lines(live(), {}).size(), 44);
}

TEST_F(TopTest, PhasesWithoutTimeHaveNoColumn) {
  step(rank(0, 1), 90);
  EXPECT_THAT(to_lines(live(), {})[3], HasSubstr("for  forw  comm"));
  EXPECT_THAT(to_lines(live(), {})[4], HasSubstr("  90%   10%"));
}

TEST_F(TopTest, SaysWhatBoundsTheStepAndWhatTheRanksUse) {
  Writer& writer = rank(0, 1);
  EXPECT_EQ(to_lines(live(), {})[2], "");
  for (int i = 0; i < 9; ++i) step(writer, 60);
  EXPECT_THAT(to_lines(live(), {})[4], ::testing::EndsWith("    -        -"));
  EXPECT_EQ(to_lines(live(), {})[2],
            "bound by: compute, 60 % of the step (60.0 of 100 ms); communication, 40 %");
  EXPECT_EQ(to_json(live())["bound_by"], "compute");
  EXPECT_NEAR(to_json(live())["bound_share"], 0.6, 1e-9);
  writer.set_resources({.sampled_ns = monotonic_ns() + 1'000'000'000'000U,
                        .user_ns = 1'500'000'000'000U,
                        .memory_bytes = std::uint64_t{3} << 30U});
  EXPECT_THAT(to_lines(live(), {})[4], ::testing::EndsWith("  1.5 3.00 GiB"));
  EXPECT_EQ(to_json(live())["ranks"][0]["memory_bytes"], std::uint64_t{3} << 30U);
  EXPECT_EQ(to_json(live())["ranks"][0]["gpu_busy_percent"], nullptr);
}

TEST_F(TopTest, ShowsGpusIfARankHasOne) {
  step(rank(1, 2), 90);
  Writer& writer = rank(0, 2);
  step(writer, 90);
  writer.set_resources(
      {.sampled_ns = 1,
       .gpu = {
           .uuid = {1, 1}, .memory_bytes = std::uint64_t{40} << 30U, .busy_percent = 93, .sm_mhz = 1410}});
  const auto lines = to_lines(live(), {});
  EXPECT_THAT(lines[3], ::testing::EndsWith("   gpu  gpu_mem   MHz"));
  EXPECT_THAT(lines[4], ::testing::EndsWith("  93% 40.0 GiB  1410"));
  EXPECT_THAT(lines[5], ::testing::EndsWith("    -        -     -"));
  EXPECT_EQ(lines[3].size(), lines[4].size());
  EXPECT_EQ(to_json(live())["ranks"][0]["gpu_busy_percent"], 93);
}

}  // namespace
}  // namespace lockstep::top
