// check_plan() must refuse a plan with any mistake. These plans are written by hand, because the planner
// makes no mistakes.
#include "tests/unit/runtime/data/plan/oracle/plan_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/data/plan/tool/plan_stats.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/plan_rules.h"

namespace lockstep::data {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::ThrowsMessage;

constexpr SampleId kPiece = SampleId{1} << kPieceShift;

class PlanCheck : public testing::Test {
 protected:
  PlanCheck() { lengths_.fingerprint = "data"; }

  Plan plan() const {
    Plan made(options_, samples_, fingerprint_);
    for (const auto& step : steps_) made.append_step(step);
    return made;
  }
  CheckedPlan check() const { return check_plan(plan(), lengths_); }
  void expect_refused(const std::string& why) const {
    EXPECT_THAT([&] { check(); }, ThrowsMessage<Error>(AllOf(HasSubstr(why), Not(HasSubstr("\n")))));
  }

  PlanOptions options_{.ranks = 2, .cap = 10, .cost = {1, 0}};
  Lengths lengths_{.tokens = {6, 4, 5, 5, 3, 7, 2}, .fingerprint = {}};
  std::size_t samples_ = 7;
  std::string fingerprint_ = "data";
  // Ranks with two micro-batches, with one and with none.
  Nested steps_ = {{{{0}, {1, 2}}, {{3, 4}}}, {{{5}}, {}}, {{}, {{6}}}};
};

TEST_F(PlanCheck, AcceptsRanksWithAnyNumberOfMicroBatches) {
  const CheckedPlan checked = check();
  EXPECT_EQ(checked.dropped, 0U);
}

TEST_F(PlanCheck, StatsCountTheCostByTheSpeedsInAllStepsButTheLast) {
  EXPECT_DOUBLE_EQ(stats_of(plan(), lengths_.tokens).imbalance_cost, (15 / 11.5 + 2) / 2);
  options_.speeds = {3, 1};
  EXPECT_DOUBLE_EQ(stats_of(plan(), lengths_.tokens).imbalance_cost, (8 / (23 / 4.0) + 7 / 3.0 * 4 / 7) / 2);
}

TEST_F(PlanCheck, FindsOtherData) {
  samples_ = 8;
  expect_refused("for 8 samples, but the data have 7");
  samples_ = 7;
  fingerprint_ = "others";
  expect_refused("its fingerprint is others, but that of the data is data");
}

TEST_F(PlanCheck, FindsAMissingSample) {
  steps_[0][0][1] = {2};
  expect_refused("1 samples or pieces are missing: sample 1 is used 0 times instead of 1");
  steps_[1][0][0] = {};
  steps_.erase(steps_.begin() + 1);
  expect_refused("2 samples or pieces are missing: sample 1 is used 0 times instead of 1");
}

TEST_F(PlanCheck, FindsADuplicatedSample) {
  steps_[1][1] = {{2}};
  expect_refused("step 1, rank 1, micro-batch 0: sample 2 was already in step 0");
  steps_[1][1] = {};
  steps_[0][0][0] = {1};
  expect_refused("step 0, rank 0, micro-batch 1: sample 1 was already in step 0");
}

TEST_F(PlanCheck, FindsASampleThatDoesNotExist) {
  steps_[1][0] = {{7}};
  expect_refused("step 1, rank 0, micro-batch 0: there is no sample 7");
}

TEST_F(PlanCheck, FindsAMicroBatchOverTheCap) {
  steps_[0] = {{{0, 2}, {1}}, {{3, 4}}};
  expect_refused("step 0, rank 0, micro-batch 0: 11 tokens, over the cap of 10");
  options_.cap = 11;
  EXPECT_NO_THROW(check());
}

TEST_F(PlanCheck, FindsAPaddedMicroBatchOverTheCap) {
  options_.padded = true;
  options_.pad_multiple = 1;
  EXPECT_NO_THROW(check());
  steps_ = {{{{0}, {2, 3}}, {{1, 4}}}, {{{5}}, {}}, {{}, {{6}}}};
  EXPECT_NO_THROW(check());
  options_.pad_multiple = 6;
  expect_refused("step 0, rank 0, micro-batch 1: 12 tokens, over the cap of 10");
  steps_ = {{{{0}, {1}}, {{2}, {4}}}, {{{5}}, {{3}}}, {{}, {{6}}}};
  EXPECT_NO_THROW(check()) << "a row alone may be rounded up to the cap";
}

TEST_F(PlanCheck, FindsAStepWithoutSamples) {
  using Batches = std::vector<std::vector<SampleId>>;
  steps_.insert(steps_.begin() + 1, std::vector<Batches>(2));
  expect_refused("step 1 has no samples on any rank");
  steps_[1] = std::vector<Batches>(2, Batches(1));
  expect_refused("step 1 has no samples on any rank");
}

TEST_F(PlanCheck, FindsUnequalNumbersOfMicroBatchesInAPlanForEqualOnes) {
  options_.equal_micro_batches = true;
  expect_refused(
      "step 0: rank 1 has 1 micro-batches and rank 0 has 2, but the plan was made for equal numbers");
  steps_ = {{{{0}, {1, 2}}, {{}, {3, 4}}}, {{{5}}, {{}}}, {{{}}, {{6}}}};
  EXPECT_NO_THROW(check());
  steps_[2][0] = {};
  expect_refused("step 2: rank 1 has 1 micro-batches and rank 0 has 0");
}

TEST_F(PlanCheck, AllowsADroppedStepOfFewerSamplesThanRanks) {
  steps_.pop_back();
  expect_refused("1 samples or pieces are missing");
  options_.tail = Tail::drop;
  EXPECT_EQ(check().dropped, 1U);
  steps_[0][0][0] = {};
  steps_[0][0].erase(steps_[0][0].begin());
  expect_refused(
      "2 samples or pieces are missing: sample 0 is used 0 times instead of 1 (a dropped last step has fewer samples than the 2 ranks)");
}

TEST_F(PlanCheck, AllowsRepeatedSamplesInTheLastStepOnly) {
  steps_[2][0] = {{0}};
  expect_refused("step 2, rank 0, micro-batch 0: sample 0 was already in step 0");
  options_.tail = Tail::repeat;
  EXPECT_NO_THROW(check());
  steps_[1][1] = {{1}};
  expect_refused("step 1, rank 1, micro-batch 0: sample 1 was already in step 0");
}

TEST_F(PlanCheck, CountsThePlannedTokensOfOverLongSamples) {
  options_.cap = 5;
  lengths_.tokens = {5, 12, 1};
  samples_ = 3;
  options_.too_long = TooLong::truncate;
  steps_ = {{{{0}}, {{1}}}, {{{2}}, {}}};
  EXPECT_NO_THROW(check());
  steps_[0][1] = {{1}, {1 | kPiece}};
  expect_refused("sample 1 has no piece 1");

  options_.too_long = TooLong::skip;
  steps_ = {{{{0}}, {{2}}}};
  EXPECT_NO_THROW(check());
  steps_[0][1] = {{1}};
  expect_refused("over the cap of 5");

  options_.too_long = TooLong::split;
  steps_ = {{{{0}}, {{1}, {1 | 2 * kPiece, 2}}}, {{{1 | kPiece}}, {}}};
  EXPECT_NO_THROW(check());
  steps_[1] = {{{1 | 3 * kPiece}}, {}};
  expect_refused("step 1, rank 0, micro-batch 0: sample 1 has no piece 3");
  steps_[1] = {{{1 | 2 * kPiece}}, {}};
  expect_refused("sample 1 was already in step 0");
  steps_.pop_back();
  expect_refused("1 samples or pieces are missing: piece 1 of sample 1 is used 0 times instead of 1");
}

}  // namespace
}  // namespace lockstep::data
