// The advice to jobs whose records lockstep.py wrote: no remedy is C++.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "exporters/report/diagnosis.h"
#include "tests/unit/exporters/made_up_run.h"

namespace lockstep::report {
namespace {

using lockstep::testing::MadeUpRun;
using lockstep::testing::RankStep;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PythonAdvice, NamesPythonAndNotCpp) {
  const std::map<std::string, MadeUpRun::Change> faults = {
      {"data-workers", [](RankStep& does, int, int) { does.data_wait = 50; }},
      {"padding", [](RankStep& does, int, int) { does.padding = 500; }},
      {"optimizer", [](RankStep& does, int, int) { does.optimizer = 40; }},
      {"host-to-device", [](RankStep& does, int, int) { does.host_to_device = 20; }},
      {"no-phase", [](RankStep& does, int, int) { does.other = 60; }},
      {"communication", [](RankStep& does, int, int) { does.network = 30; }},
      {"checkpoint", [](RankStep& does, int, int step) { does.checkpoint = step % 8 == 7 ? 120 : 0; }},
      {"long-steps", [](RankStep& does, int, int step) { does.other += step % 32 == 31 ? 600 : 0; }},
      {"no-tokens", [](RankStep& does, int, int) { does.tokens = does.padding = does.samples = 0; }},
  };
  const auto cpp = ContainsRegex("::|plan\\.|LoaderOptions|our loader|world\\.|[{]\\.");
  for (const auto& [rule, change] : faults) {
    MadeUpRun made_up;
    auto run = made_up.make(change);
    EXPECT_THAT(advise(run, diagnose(run)), Not(Each(Not(cpp)))) << rule << " of a program in C++";
    for (record::Snapshot& rank : run.ranks) rank.counters.from_python = 1;
    const Diagnosis found = diagnose(run);
    ASSERT_EQ(found.advice.size(), 1U) << rule;
    EXPECT_EQ(found.advice[0].rule, rule);
    EXPECT_THAT(advise(run, found), Each(Not(cpp))) << rule;
    EXPECT_THAT(verdict_lines(run, found), Each(Not(cpp))) << rule;
  }
}

std::string only_remedy(MadeUpRun made_up, const MadeUpRun::Change& change) {
  auto run = made_up.make(change);
  for (record::Snapshot& rank : run.ranks) rank.counters.from_python = 1;
  const Diagnosis found = diagnose(run);
  return found.advice.size() == 1 ? found.advice[0].remedy : fmt::format("{} rules", found.advice.size());
}

TEST(PythonAdvice, DoesNotNameTheLoaderWhereItIsTimed) {
  const auto timed = only_remedy({}, [](RankStep& does, int, int) { does.other = 60; });
  EXPECT_THAT(timed, HasSubstr("Put forward, backward and optimizer into blocks"));
  const auto untimed = only_remedy({}, [](RankStep& does, int, int) {
    does.other = 60;
    does.data_wait = 0;
  });
  EXPECT_THAT(untimed, HasSubstr("Loop over lockstep.batches(loader), and put forward"));
}

TEST(PythonAdvice, DoesNotJudgeTheReadsOfAShortRun) {
  MadeUpRun made_up{.steps = 19};
  made_up.also = [](record::Writer& writer, int, int) {
    writer.set_resources({.sampled_ns = 1, .read_bytes = 4096, .read_calls = 1});
  };
  auto run = made_up.make([](RankStep& does, int, int) { does.data_wait = 50; });
  const auto rule_of = [&] {
    for (record::Snapshot& rank : run.ranks) {
      rank.resources->sampled_ns = rank.start_monotonic_ns + 1'000'000'000;
      rank.resources->read_calls = 500;
      rank.resources->read_bytes = rank.resources->read_calls * 4096;
    }
    return diagnose(run).advice.at(0).rule;
  };
  EXPECT_EQ(rule_of(), "data-workers");
  for (record::Snapshot& rank : run.ranks) rank.counters.steps = 20;
  EXPECT_EQ(rule_of(), "small-reads");
}

TEST(PythonAdvice, NeedsTheRecordsOfAllRanks) {
  MadeUpRun made_up;
  auto run = made_up.make([](RankStep& does, int, int) { does.padding = 500; });
  run.ranks[0].counters.from_python = 1;
  EXPECT_THAT(diagnose(run).advice.at(0).remedy, HasSubstr("plan.cap"));
}

}  // namespace
}  // namespace lockstep::report
