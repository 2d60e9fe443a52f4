#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exporters/report/diagnosis.h"
#include "exporters/report/report.h"
#include "tests/unit/exporters/made_up_run.h"

namespace lockstep::report {
namespace {

using lockstep::testing::MadeUpRun;
using lockstep::testing::RankStep;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Stragglers stragglers_of(const Run& run) {
  return find_stragglers(run, common_steps(run));
}

// The only straggler of a run with this change.
Straggler only(MadeUpRun& made_up, const MadeUpRun::Change& change) {
  const Stragglers all = stragglers_of(made_up.make(change));
  EXPECT_THAT(all.found, SizeIs(1));
  return all.found.empty() ? Straggler{} : all.found.front();
}

TEST(Stragglers, ASlowWorkerIsScoredAgainstItsPeersAndThoseWhoWaitNameIt) {
  MadeUpRun made_up;
  const Stragglers all = stragglers_of(made_up.make([](RankStep& does, int rank, int) {
    if (rank == 3) does.backward += 20;
  }));
  ASSERT_THAT(all.found, SizeIs(1));
  const Straggler& slow = all.found.front();
  EXPECT_EQ(slow.cause, Cause::slow_worker);
  EXPECT_THAT(slow.ranks, ElementsAre(3));
  EXPECT_EQ(who(slow), "rank 3 on n2");
  EXPECT_EQ(slow.phases, "backward");
  EXPECT_NEAR(slow.lost_ms, 20, 0.5);
  EXPECT_EQ(slow.often, 1);
  EXPECT_NEAR(all.step_ms, 110, 1);
  EXPECT_NEAR(slow.step_ms_without, 90, 1.5);
  EXPECT_NEAR(all.ranks[3].to_peers, 1.23, 0.01);
  EXPECT_NEAR(all.ranks[0].to_peers, 1.0, 0.01);
  EXPECT_NEAR(all.ranks[3].delays_ms, 20, 0.5);
  EXPECT_EQ(all.ranks[3].late_rank, -1);
  EXPECT_EQ(all.ranks[0].late_rank, 3);
  EXPECT_NEAR(all.ranks[0].waits_ms, 20, 0.5);
  EXPECT_NEAR(all.ranks[3].step_ms_if_median, slow.step_ms_without, 1e-9);
  EXPECT_NEAR(all.ranks[0].step_ms_if_median, all.step_ms, 1e-9);
  EXPECT_NEAR(all.network_ms, 3, 0.1);
}

TEST(Stragglers, OfTwoRanksTheSlowOneIsNamed) {
  MadeUpRun made_up{.ranks = 2};
  const Straggler slow = only(made_up, [](RankStep& does, int rank, int) {
    if (rank == 1) does.slow_down(1.3);
  });
  EXPECT_THAT(slow.ranks, ElementsAre(1));
  EXPECT_EQ(slow.cause, Cause::slow_worker);
  EXPECT_NEAR(slow.excess, 0.27, 0.02);
}

TEST(Stragglers, ARankIsComparedWithItsOwnPast) {
  MadeUpRun made_up;
  const Stragglers all = stragglers_of(made_up.make([](RankStep& does, int rank, int step) {
    if (rank == 1 && step >= 48) does.slow_down(1.5);
  }));
  ASSERT_THAT(all.found, SizeIs(1));
  EXPECT_THAT(all.found.front().ranks, ElementsAre(1));
  EXPECT_NEAR(all.found.front().to_past.value(), 1.45, 0.05);
  EXPECT_NEAR(all.ranks[0].to_past.value(), 1.0, 0.01);
  MadeUpRun short_one{.steps = 20};
  EXPECT_FALSE(stragglers_of(short_one.make()).ranks[0].to_past) << "too few steps";
}

TEST(Stragglers, AllRanksOfASlowNodeAreOneFinding) {
  MadeUpRun made_up;
  const Straggler slow = only(made_up, [](RankStep& does, int rank, int) {
    if (rank >= 2) does.slow_down(1.3);
  });
  EXPECT_THAT(slow.ranks, ElementsAre(2, 3));
  EXPECT_NEAR(slow.step_ms_without, 90, 2) << "only both together make the step shorter";
}

TEST(Stragglers, RanksOfSeveralNodesHaveEachTheirOwnCause) {
  MadeUpRun made_up{.ranks = 8};
  const report::Run run = made_up.make([](RankStep& does, int rank, int) {
    if (rank == 1) does.data_wait += 20;
    if (rank == 6) does.backward += 25;
  });
  const Stragglers all = stragglers_of(run);
  ASSERT_THAT(all.found, SizeIs(2));
  EXPECT_EQ(all.found[0].cause, Cause::slow_worker);
  EXPECT_THAT(all.found[0].ranks, ElementsAre(6));
  EXPECT_EQ(all.found[1].cause, Cause::input_data);
  EXPECT_THAT(all.found[1].ranks, ElementsAre(1));
  // Each alone leaves the other one late.
  EXPECT_NEAR(all.step_ms, 115, 1);
  EXPECT_NEAR(all.found[0].step_ms_without, 110, 1);
  EXPECT_NEAR(all.found[1].step_ms_without, 115, 1);
  EXPECT_NEAR(all.step_ms_without_late.value(), 90, 1.5);
  EXPECT_THAT(diagnose(run).advice.at(1).finding, HasSubstr("ms without all late ranks."));
}

TEST(Stragglers, EqualWorkCostsTheMean) {
  MadeUpRun made_up;
  // 86 ms of own time on three ranks and 126 ms on the fourth: equal work is 96 ms, not 86 ms.
  const auto longer = [](RankStep& does) {
    does.tokens = 1500;
    does.backward += 40;
  };
  const Stragglers turns = stragglers_of(made_up.make([&](RankStep& does, int rank, int step) {
    if (step % 4 == rank) longer(does);
  }));
  ASSERT_THAT(turns.found, SizeIs(1));
  EXPECT_THAT(turns.found[0].ranks, IsEmpty());
  EXPECT_NEAR(turns.found[0].step_ms_without, 100, 1.5);
  EXPECT_NEAR(turns.found[0].lost_ms, 30, 1);
  EXPECT_NEAR(turns.imbalance, 0.31, 0.01);
  const Straggler one = only(made_up, [&](RankStep& does, int rank, int) {
    if (rank == 2) longer(does);
  });
  EXPECT_EQ(one.cause, Cause::uneven_input);
  EXPECT_NEAR(one.step_ms_without, 100, 1.5);
}

TEST(Stragglers, RanksThatDoNotWaitForEachOtherTakeAsLongAsTheSlowest) {
  MadeUpRun made_up{.synchronised = false};
  const Stragglers late = stragglers_of(made_up.make([](RankStep& does, int rank, int) {
    if (rank == 3) does.backward += 40;
  }));
  ASSERT_THAT(late.found, SizeIs(1));
  EXPECT_NEAR(late.step_ms, 130, 1.5);
  EXPECT_NEAR(late.found[0].step_ms_without, 90, 1.5);
  // Nobody waits for a rank that has one long step now and then.
  const Stragglers turns = stragglers_of(made_up.make([](RankStep& does, int rank, int step) {
    if (step % 4 == rank) does.backward += 40;
  }));
  EXPECT_THAT(turns.found, IsEmpty());
  EXPECT_NEAR(turns.step_ms, 100, 1.5);
}

TEST(Stragglers, ARankWhoseTokensExplainOnlyASmallPartIsASlowWorker) {
  MadeUpRun made_up;
  const Straggler slow = only(made_up, [](RankStep& does, int rank, int) {
    if (rank != 1) return;
    does.tokens = 1100;  // explains only a small part
    does.slow_down(1.8);
  });
  EXPECT_EQ(slow.cause, Cause::slow_worker);
}

TEST(Stragglers, RanksThatTakeTurnsDoNotHideTheOneThatWritesSlowly) {
  MadeUpRun made_up;
  made_up.ranks = 2;
  const Straggler writer = only(made_up, [](RankStep& does, int rank, int step) {
    does.backward += step % 2 == rank ? 25 : 0;
    does.checkpoint = rank == 1 && step % 10 == 9 ? 150 : 0;
  });
  EXPECT_EQ(writer.cause, Cause::checkpoint);
  EXPECT_THAT(writer.ranks, ElementsAre(1));
}

TEST(Stragglers, ALateNetworkThatNothingMeasuredIsOfNoRank) {
  MadeUpRun made_up;
  made_up.communication_measured = false;
  const Straggler unknown =
      only(made_up, [](RankStep& does, int rank, int) { does.late_network = rank == 3 ? 25 : 0; });
  EXPECT_EQ(unknown.cause, Cause::network);
  EXPECT_THAT(unknown.ranks, IsEmpty()) << "nothing says which rank it was";
}

TEST(Stragglers, OfTwoRanksWithALateNetworkTheWorseIsNamed) {
  MadeUpRun made_up;
  const Straggler late = only(made_up, [](RankStep& does, int rank, int step) {
    does.network = 0;
    does.backward += rank == 0 ? 5 : 0;
    if (rank == (step % 2 == 0 ? 1 : 3)) does.late_network = rank == 1 ? 40 : 38;
  });
  EXPECT_EQ(late.cause, Cause::network);
  EXPECT_THAT(late.ranks, ElementsAre(1));
  EXPECT_NEAR(late.lost_ms, 20, 2) << "every second step";
}

TEST(Stragglers, WaitingForARankWhoseRecordIsNotHereIsNotTheNetwork) {
  MadeUpRun made_up{.last_rank_written = 1};
  const auto slow = [](RankStep& does, int rank, int) { does.backward += rank == 3 ? 40 : 0; };
  const Stragglers all = stragglers_of(made_up.make(slow));
  EXPECT_THAT(all.found, IsEmpty());
  EXPECT_EQ(all.ranks.at(0).late_rank, 3);
  made_up.communication_measured = false;
  EXPECT_THAT(stragglers_of(made_up.make(slow)).found, IsEmpty());
}

TEST(Stragglers, StepsThatNotAllRanksHaveAreNotCompared) {
  MadeUpRun made_up;
  auto run = made_up.make();
  run.ranks[2].steps.clear();
  EXPECT_EQ(stragglers_of(run).steps, 0);
  EXPECT_THAT(stragglers_of(run).ranks, IsEmpty());
  EXPECT_EQ(straggler_text(stragglers_of(run)), "");
}

TEST(Stragglers, AreShownAsTableAndJson) {
  MadeUpRun made_up{.ranks = 12, .ranks_per_node = 6};
  const Stragglers all = stragglers_of(
      made_up.make([](RankStep& does, int rank, int) { does.backward += rank == 10 ? 20 : 0; }));
  EXPECT_THAT(straggler_text(all),
              HasSubstr("the 8 slowest ranks, last 62 steps; the slowest rank of a step works 20.8 % "));
  EXPECT_THAT(straggler_text(all), HasSubstr("\n  10  n2"));
  EXPECT_THAT(straggler_html(all), HasSubstr("<td>rank 10</td>"));
  const nlohmann::json json = straggler_json(all);
  EXPECT_EQ(json["ranks"].size(), 12);
  EXPECT_EQ(json["ranks"][0]["late_rank"], 10);
  EXPECT_TRUE(json["ranks"][10]["late_rank"].is_null());
  EXPECT_EQ(json["found"][0]["cause"], "slow_worker");
  EXPECT_EQ(json["found"][0]["ranks"], nlohmann::json::array({10}));
}

TEST(WaitsByRank, AddUpTheStepsOfEachRankWaitedFor) {
  std::vector<record::Step> steps(4);
  steps[0].late_rank = steps[1].late_rank = 3;
  steps[0].comm_wait_ns = steps[1].comm_wait_ns = 2'000'000;
  steps[2].late_rank = 1;
  steps[2].comm_wait_ns = 6'000'000;
  steps[3].comm_wait_ns = 6'000'000;  // nobody knows for which rank
  EXPECT_EQ(record::waits_by_rank(steps), (std::map<int, double>{{1, 0.0015}, {3, 0.001}}));
  EXPECT_TRUE(record::waits_by_rank({}).empty());
}

}  // namespace
}  // namespace lockstep::report
