// The verdict on runs with one known cause, and the goodput and memory of runs with known numbers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "exporters/report/diagnosis.h"
#include "tests/unit/exporters/made_up_run.h"

namespace lockstep::report {
namespace {

using lockstep::testing::MadeUpRun;
using lockstep::testing::RankStep;
using record::Phase;
using record::Resources;
using record::Snapshot;
using record::Writer;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Verdict verdict_on(const MadeUpRun::Change& change, MadeUpRun&& made = {}) {
  const auto verdict = diagnose(made.make(change)).verdict;
  if (!verdict) throw std::runtime_error("there is no verdict");
  return *verdict;
}

double part(const Verdict& verdict, Bound bound) {
  return verdict.parts_ms.at(static_cast<std::size_t>(bound));
}

TEST(Verdict, OfARunWithoutFaultsIsCompute) {
  const Verdict verdict = verdict_on({});
  EXPECT_EQ(verdict.bound, Bound::compute);
  EXPECT_GT(verdict.share(Bound::compute), 0.9);
  EXPECT_NEAR(std::accumulate(verdict.parts_ms.begin(), verdict.parts_ms.end(), 0.0), verdict.step_ms, 1e-6);
}

// Milliseconds of a step that computes for 83 to 84 and does nothing else for long.
TEST(Verdict, IsTheLargestPartAndNamesWhatTakesATenthBesideIt) {
  struct Case {
    double data_wait, network, other;
    Bound bound;
    std::vector<Bound> beside;
  };
  const std::vector<Case> cases = {
      {1, 3, 1, Bound::compute, {}},
      {1, 3, 9, Bound::compute, {}},  // 9 %
      {1, 3, 12, Bound::compute, {Bound::host}},
      {9, 3, 1, Bound::compute, {Bound::input}},
      {1, 12, 1, Bound::compute, {Bound::communication}},
      {1, 30, 40, Bound::compute, {Bound::host, Bound::communication}},
      {60, 30, 40, Bound::compute, {Bound::input, Bound::host, Bound::communication}},
      {81, 3, 1, Bound::compute, {Bound::input}},
      {85, 3, 1, Bound::input, {}},
      {1, 90, 1, Bound::communication, {}},
      {1, 3, 90, Bound::host, {}},
      {90, 100, 40, Bound::communication, {Bound::input, Bound::host}}};
  for (const Case& one : cases) {
    const Verdict verdict = verdict_on([&](RankStep& does, int, int) {
      does.data_wait = one.data_wait;
      does.network = one.network;
      does.other = one.other;
    });
    const std::string line = bound_line(verdict);
    EXPECT_EQ(verdict.bound, one.bound) << line;
    EXPECT_EQ(verdict.beside, one.beside) << line;
    for (std::size_t i = 0; i < kBounds; ++i)
      EXPECT_LE(verdict.share(static_cast<Bound>(i)), verdict.share(verdict.bound)) << line;
    EXPECT_EQ(verdict.obstacle(),
              one.bound == Bound::compute && !one.beside.empty() ? one.beside[0] : one.bound);
  }
}

TEST(Verdict, OfWaitingForDataIsInput) {
  const Verdict verdict = verdict_on([](RankStep& does, int, int) { does.data_wait = 150; });
  EXPECT_EQ(verdict.bound, Bound::input);
  EXPECT_EQ(verdict.how, "");
  EXPECT_NEAR(part(verdict, Bound::input), 151, 1e-6);  // with the copy to the device
}

// One rank that waits for its data is not uneven work: its disk is slow, and balancing would not help.
TEST(Verdict, OfOneRankThatWaitsForDataIsInputToo) {
  const Verdict verdict =
      verdict_on([](RankStep& does, int rank, int) { does.data_wait += rank == 2 ? 40 : 0; });
  EXPECT_EQ(verdict.obstacle(), Bound::input);
  EXPECT_NEAR(part(verdict, Bound::input), 42, 1e-6);
  EXPECT_LT(verdict.share(Bound::imbalance), 0.02);
}

TEST(Verdict, OfInputSaysWhetherTheLoaderReadsOrDecodes) {
  const auto with_loader = [](std::uint64_t processor_ns) {
    MadeUpRun made;
    made.also = [=](Writer& writer, int, int) {
      writer.add_loader_work({.build_ns = 1000, .user_ns = processor_ns / 2, .delay_ns = processor_ns / 2});
      writer.set_resources({.sampled_ns = 1});
    };
    return verdict_on([](RankStep& does, int, int) { does.data_wait = 50; }, std::move(made));
  };
  EXPECT_EQ(with_loader(100).how, "reading");
  EXPECT_EQ(with_loader(900).how, "decoding and transforming");
  // A faster disk shortens only the part that reads; a faster processor also the part that decodes.
  EXPECT_LT(with_loader(100).step_ms_if_twice[0], with_loader(900).step_ms_if_twice[0]);
  EXPECT_GT(with_loader(100).step_ms_if_twice[2], with_loader(900).step_ms_if_twice[2]);
}

TEST(Verdict, OfCodeInNoPhaseIsHost) {
  EXPECT_EQ(verdict_on([](RankStep& does, int, int) { does.other = 160; }).bound, Bound::host);
}

TEST(Verdict, OfADeviceThatWaitsForLaunchesIsHost) {
  MadeUpRun made;
  made.also = [](Writer& writer, int, int) {
    writer.add_launch(50'000'000);  // of the 83 ms that the phases compute
    writer.set_resources({.sampled_ns = 1});
  };
  const Verdict verdict = verdict_on({}, std::move(made));
  EXPECT_EQ(verdict.bound, Bound::host);
  EXPECT_NEAR(part(verdict, Bound::host), 51, 1);
}

TEST(Verdict, OfUnevenWorkIsImbalance) {
  const Verdict verdict =
      verdict_on([](RankStep& does, int rank, int) { does.slow_down(rank == 1 ? 1.5 : 1); });
  EXPECT_EQ(verdict.obstacle(), Bound::imbalance);
  EXPECT_NEAR(part(verdict, Bound::imbalance), 0.5 * 78.5 * 3 / 4,
              1);  // of its work the others could do a part
}

// The last rank is on a node whose records are missing: waiting for it is measured, and is not communication.
TEST(Verdict, OfTheRanksOfOneNodeCountsWaitingForTheOthers) {
  MadeUpRun made;
  made.last_rank_written = 1;
  const Verdict verdict =
      verdict_on([](RankStep& does, int rank, int) { does.slow_down(rank == 3 ? 1.5 : 1); }, std::move(made));
  EXPECT_EQ(verdict.obstacle(), Bound::imbalance);
  EXPECT_LT(verdict.share(Bound::communication), 0.05);
}

// 50 waiting + 1 copy, 84 computing (the slowest rank of each step), 1 other, 3 network; the transfer takes 8.
TEST(Verdict, GivesTheShortestStepWithEachResourceTwiceAsGood) {
  const Verdict verdict = verdict_on([](RankStep& does, int, int) { does.data_wait = 50; });
  const double step = verdict.step_ms;
  EXPECT_NEAR(verdict.step_ms_if_twice[0], step - 50, 1e-6) << "a queue that fills twice as fast";
  EXPECT_NEAR(verdict.step_ms_if_twice[1], step - 3, 1e-6) << "the rest of the transfer is hidden";
  EXPECT_NEAR(verdict.step_ms_if_twice[2], step - (part(verdict, Bound::compute) + 1) / 2, 1e-6);
  EXPECT_NEAR(verdict.step_ms_if_twice[3], step - part(verdict, Bound::imbalance) / 2, 1e-6);
}

// A step that waits for data nearly all the time still takes half as long with twice the disk.
TEST(Verdict, HalvesAStepThatOnlyWaitsForData) {
  const Verdict verdict = verdict_on([](RankStep& does, int, int) { does.data_wait = 5000; });
  EXPECT_NEAR(verdict.step_ms_if_twice[0], verdict.step_ms / 2, 1e-6);
}

TEST(Verdict, BeginsTheReportWithTheRemedyOfEachPart) {
  MadeUpRun made;
  const report::Run run = made.make([](RankStep& does, int, int) { does.network = 30; });
  const auto lines = verdict_lines(run, diagnose(run));
  ASSERT_EQ(lines.size(), 3);
  EXPECT_THAT(
      lines[0],
      ::testing::MatchesRegex(
          "bound by: compute, 7[12] % of the step \\(8[34]\\.. of 117 ms\\)\\. To compute faster: bfloat16 .*\\. "
          "Another 26 % is communication \\(30\\.0 ms\\)\\. Give each step more work.*"));
  EXPECT_THAT(lines[1], HasSubstr("a step would take at least 116 ms with twice the disk"));
  const auto json = verdict_json(run, diagnose(run));
  EXPECT_EQ(json["bound_by"], "compute");
  EXPECT_NEAR(json["bound_share"], 0.71, 0.01);
  EXPECT_EQ(json["bound_parts_ms"].size(), 5);
  EXPECT_EQ(json["step_ms_if_twice"].size(), 4);
}

TEST(Verdict, OfARunWithoutPhasesIsUnknown) {
  const auto run_with = [](double data_wait) {
    MadeUpRun made;
    return made.make([=](RankStep& does, int, int) {
      does.forward = does.backward = does.optimizer = 0;
      does.data_wait = data_wait;
      does.other = 80;
    });
  };
  const report::Run run = run_with(1);
  const auto lines = verdict_lines(run, diagnose(run));
  EXPECT_THAT(lines.at(0), HasSubstr("bound by: unknown (time in no phase), 9"));
  EXPECT_EQ(lines.back(), "goodput: unknown, because no phases of computing were recorded");
  const auto json = verdict_json(run, diagnose(run));
  for (const char* name : {"bound_by", "goodput", "goodput_job"}) EXPECT_TRUE(json[name].is_null()) << name;
  const report::Run waiting = run_with(200);
  EXPECT_EQ(verdict_json(waiting, diagnose(waiting))["bound_by"], "input");
}

TEST(Verdict, OfARunWithoutStepsIsNull) {
  MadeUpRun made;
  made.steps = 0;
  const report::Run run = made.make();
  EXPECT_THAT(verdict_lines(run, diagnose(run)), IsEmpty());
  EXPECT_TRUE(verdict_json(run, diagnose(run))["bound_by"].is_null());
}

constexpr std::uint64_t kSecond = 1'000'000'000;

// A rank of 100 s: 10 until the first step, 80 in steps, 10 after them.
Snapshot rank_of_100_seconds(int rank) {
  Snapshot made;
  made.identity = {.job_id = 7, .rank = rank, .size = 2, .node = "n1"};
  made.start_unix_ns = 1'700'000'000 * static_cast<std::int64_t>(kSecond);
  made.finished_unix_ns = made.start_unix_ns + static_cast<std::int64_t>(100 * kSecond);
  made.start_monotonic_ns = 5 * kSecond;
  made.resources = Resources{.sampled_ns = 105 * kSecond,
                             .user_ns = 90 * kSecond,
                             .memory_peak_bytes = 310,
                             .memory_limit_bytes = 1000,
                             .memory_group = 9,
                             .first_step_ns = 15 * kSecond};
  made.counters.steps = 80;
  made.counters.step_ns = 80 * kSecond;
  made.counters.tokens = 1;
  made.counters.phase_ns[record::index(Phase::data_wait)] = 5 * kSecond;
  made.counters.phase_ns[record::index(Phase::forward)] = 20 * kSecond;
  made.counters.phase_ns[record::index(Phase::backward)] = 38 * kSecond;
  made.counters.phase_ns[record::index(Phase::optimizer)] = 2 * kSecond;
  made.counters.phase_ns[record::index(Phase::comm_exposed)] = 9 * kSecond;
  made.counters.phase_ns[record::index(Phase::checkpoint)] = 4 * kSecond;
  made.counters.phase_ns[record::index(Phase::other)] = 2 * kSecond;
  return made;
}

Run run_of_100_seconds() {
  Run run;
  run.ranks = {rank_of_100_seconds(0), rank_of_100_seconds(1)};
  return run;
}

TEST(GoodputTest, IsTheShareOfTheTimeThatTrained) {
  const record::Goodput goodput = find_goodput(run_of_100_seconds());
  EXPECT_DOUBLE_EQ(goodput.seconds, 100);
  EXPECT_NEAR(goodput.trained, 0.60, 1e-9);
  EXPECT_NEAR(goodput.start, 0.10, 1e-9);
  EXPECT_NEAR(goodput.input, 0.05, 1e-9);
  EXPECT_NEAR(goodput.communication, 0.09, 1e-9);
  EXPECT_NEAR(goodput.checkpoint, 0.04, 1e-9);
  EXPECT_NEAR(goodput.other, 0.02, 1e-9);
  EXPECT_NEAR(goodput.between_steps, 0.10, 1e-9);
}

TEST(GoodputTest, DoesNotCountStepsThatTheLossScalerSkipped) {
  report::Run run = run_of_100_seconds();
  for (Snapshot& rank : run.ranks) rank.counters.skipped_steps = 20;
  EXPECT_NEAR(find_goodput(run).trained, 0.45, 1e-9);
  EXPECT_NEAR(find_goodput(run).skipped, 0.15, 1e-9);
}

TEST(MemoryUseTest, AddsTheRanksThatShareALimit) {
  report::Run run = run_of_100_seconds();
  run.ranks.push_back(rank_of_100_seconds(2));
  run.ranks.back().resources->memory_group = 4;  // a cgroup of its own
  run.ranks.push_back(rank_of_100_seconds(3));
  run.ranks.back().resources.reset();
  const auto uses = memory_use(run);
  ASSERT_EQ(uses.size(), 2);
  EXPECT_THAT(uses[0].ranks, ElementsAre(0, 1));
  EXPECT_DOUBLE_EQ(uses[0].share(), 0.62);
  EXPECT_DOUBLE_EQ(uses[1].share(), 0.31);
  EXPECT_EQ(to_text(uses[1]), "rank 2 on n1 uses up to 310 B of the 1000 B of the job's cgroup (31 %)");
  run.ranks[0].resources->loader_buffer_bytes = run.ranks[1].resources->loader_buffer_bytes = 60;
  EXPECT_EQ(
      to_text(memory_use(run)[0]),
      "the 2 ranks on n1 use up to 620 B of the 1000 B of the job's cgroup (62 %; the loader's batches at most 120 B)");
}

// Files can be given up, and what the ranks share is there once.
TEST(MemoryUseTest, CountsSharedMemoryOnceAndFilesNotAtAll) {
  report::Run run = run_of_100_seconds();
  for (Snapshot& rank : run.ranks) {
    rank.resources->memory_file_bytes = 100;
    rank.resources->memory_shared_bytes = 50 + static_cast<std::uint64_t>(rank.identity.rank);
  }
  EXPECT_EQ(memory_use(run).at(0).peak, 160U + 159U + 51U);
}

std::vector<std::string> rules(const Run& run) {
  std::vector<std::string> names;
  for (const Advice& advice : diagnose(run).advice) {
    if (advice.rule.starts_with("memory-") || advice.rule == "cpu-limit") names.push_back(advice.rule);
  }
  return names;
}

TEST(ResourceAdvice, WarnsWhenMemoryIsNearlyFull) {
  report::Run run = run_of_100_seconds();
  EXPECT_THAT(rules(run), IsEmpty());
  for (Snapshot& rank : run.ranks) rank.resources->memory_peak_bytes = 460;
  EXPECT_THAT(rules(run), ElementsAre("memory-full"));
  EXPECT_THAT(verdict_lines(run, diagnose(run))[0],
              HasSubstr("Memory is nearly full: the 2 ranks on n1 use up to 920 B of the 1000 B"));
}

TEST(ResourceAdvice, SaysThatARankDiedForMemory) {
  report::Run run = run_of_100_seconds();
  for (Snapshot& rank : run.ranks) rank.resources->memory_peak_bytes = 420;
  EXPECT_THAT(rules(run), IsEmpty());
  run.ranks[1].finished_unix_ns = 0;
  EXPECT_THAT(rules(run), ElementsAre("memory-full"));
  const Diagnosis found = diagnose(run);
  const std::string line = verdict_lines(run, found).at(0);
  EXPECT_THAT(line, HasSubstr("Out of memory: the 2 ranks on n1"));
  EXPECT_THAT(advise(run, found), Contains(line)) << "one finding, one remedy";
}

// The first step's activations are what ends many jobs.
TEST(ResourceAdvice, SaysThatARankDiedForMemoryBeforeItsFirstStep) {
  report::Run run = run_of_100_seconds();
  for (Snapshot& rank : run.ranks) {
    rank.counters = {};
    rank.resources->memory_peak_bytes = 460;
  }
  EXPECT_THAT(rules(run), ElementsAre("memory-full"));
  EXPECT_THAT(advise(run, diagnose(run)), ElementsAre(HasSubstr("Memory is nearly full")));
}

// A larger cap helps only where a step has little work for its communication, and only memory of the host is known.
TEST(ResourceAdvice, SaysThatALargerCapFitsOnlyWhereThatIsKnownAndHelps) {
  report::Run run = run_of_100_seconds();
  const auto with_communication = [&](std::uint64_t milliseconds) {
    for (Snapshot& rank : run.ranks) {
      rank.resources->memory_peak_bytes = 150;
      record::Step step{.index = 5, .step_ns = 100'000'000};
      step.phase_ns[record::index(Phase::comm_exposed)] = milliseconds * 1'000'000;
      step.phase_ns[record::index(Phase::forward)] = (100 - milliseconds) * 1'000'000;
      rank.steps = {step};
    }
  };
  with_communication(5);
  EXPECT_THAT(rules(run), IsEmpty());
  with_communication(30);
  EXPECT_THAT(rules(run), ElementsAre("memory-unused"));
  EXPECT_THAT(advise(run, diagnose(run)), Contains(HasSubstr("(30 %), and each step has little work")));
  run.ranks[1].resources->on_device = 1;
  EXPECT_THAT(rules(run), IsEmpty());
  run.ranks[1].resources->on_device = 0;
  run.ranks[1].resources->memory_peak_bytes = 400;
  EXPECT_THAT(rules(run), IsEmpty());
}

TEST(ResourceAdvice, WarnsWhenTheCgroupsCpusAreUsedUp) {
  report::Run run = run_of_100_seconds();  // 0.9 CPUs each
  for (Snapshot& rank : run.ranks) rank.resources->cpu_limit = 4;
  EXPECT_THAT(rules(run), IsEmpty());
  for (Snapshot& rank : run.ranks) rank.resources->cpu_limit = 1.9;
  EXPECT_THAT(rules(run), ElementsAre("cpu-limit"));
  for (Snapshot& rank : run.ranks) rank.resources->cpu_limit = 1.2;  // more than that together: one for each
  EXPECT_THAT(rules(run), IsEmpty());
}

}  // namespace
}  // namespace lockstep::report
