// Families of metrics out of the records of a job step.
#include "exporters/families/rank_families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace lockstep::exporter {
namespace {

using record::Phase;

constexpr std::uint64_t kMillisecond = 1'000'000;

// A rank that began a second before its first step, and has ended `steps` steps of 100 ms: 60 train, 20 wait for data, 10
// for other ranks. Half a second lies between two steps.
record::Snapshot rank_with(std::uint64_t steps) {
  record::Snapshot rank;
  rank.start_unix_ns = 5'000'000'000'000;
  rank.start_monotonic_ns = 7'000 * kMillisecond;
  rank.counters.steps = steps;
  rank.counters.step_ns = steps * 100 * kMillisecond;
  const auto phase = [&](Phase one, std::uint64_t ms) {
    rank.counters.phase_ns[record::index(one)] = steps * ms * kMillisecond;
  };
  phase(Phase::forward, 40);
  phase(Phase::optimizer, 20);
  phase(Phase::data_wait, 20);
  phase(Phase::comm_exposed, 10);
  phase(Phase::other, 10);
  rank.counters.last_step_end_ns = (7'000 + 1'000 + steps * 100 + 500) * kMillisecond;
  rank.resources = record::Resources{.sampled_ns = 1, .first_step_ns = steps == 0 ? 0 : 8'000 * kMillisecond};
  return rank;
}

std::map<std::string, double> seconds_by_cause(std::vector<record::Snapshot> ranks) {
  std::map<std::string, double> seconds;
  FamilyStream stream([&](const prometheus::MetricFamily& family) {
    if (family.name != "lockstep_job_seconds_total") return;
    for (const auto& metric : family.metric) {
      std::map<std::string, std::string> labels;
      for (const auto& label : metric.label) labels[label.name] = label.value;
      EXPECT_EQ(labels["user_name"], "alice");
      EXPECT_EQ(labels["job_id"], "7");
      seconds[labels["cause"]] = metric.counter.value;
    }
  });
  stream_rank_families(
      {{.user = "1000", .user_name = "alice", .job = "7", .step = "0", .ranks = std::move(ranks)}}, "n1",
      stream);
  stream.finish();
  return seconds;
}

TEST(RankFamilies, TheTimeOfAJobsRanksIsDividedByItsUse) {
  const auto seconds = seconds_by_cause({rank_with(10), rank_with(10)});
  EXPECT_EQ(seconds.size(), 7);
  EXPECT_NEAR(seconds.at("trained"), 2 * 0.6, 1e-6);
  EXPECT_NEAR(seconds.at("input"), 2 * 0.2, 1e-6);
  EXPECT_NEAR(seconds.at("communication"), 2 * 0.1, 1e-6);
  EXPECT_NEAR(seconds.at("start"), 2 * 1.0, 1e-6);
  EXPECT_NEAR(seconds.at("checkpoint"), 0, 1e-6);
  EXPECT_NEAR(seconds.at("other"), 2 * 0.1, 1e-6);
  EXPECT_NEAR(seconds.at("between_steps"), 2 * 0.5, 1e-6);
}

// Prometheus takes a counter that falls for a restart.
TEST(RankFamilies, TheTimesOfAJobNeverFall) {
  record::Snapshot skipping = rank_with(20);
  skipping.counters.skipped_steps = 5;
  record::Snapshot unsampled = rank_with(1);
  unsampled.resources->first_step_ns = 0;  // a step has ended since the sample
  std::map<std::string, double> last;
  for (const record::Snapshot& rank : {rank_with(0), unsampled, rank_with(2), rank_with(10), skipping}) {
    for (const auto& [cause, seconds] : seconds_by_cause({rank})) {
      EXPECT_GE(seconds, last[cause] - 1e-9) << cause;
      last[cause] = seconds;
    }
  }
  EXPECT_NEAR(last["trained"], 20 * 0.06, 1e-6);
}

}  // namespace
}  // namespace lockstep::exporter
