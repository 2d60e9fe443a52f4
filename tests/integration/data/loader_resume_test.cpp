// A loader continues at the position of another one, on any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/loader.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST_F(LoaderTest, ResumedAfterAnyStepOnOtherRanksEverySampleIsSeenOnce) {
  PlanOptions plan = options(150, 2);
  plan.epoch = 3;
  for (std::uint64_t at = 0; at <= 7; ++at) {
    for (const int ranks : {1, 2, 3, 5}) {
      std::string state;
      auto ids = take_on_ranks(*reader_, plan, 2, at, state);
      const auto more = take_on_ranks(*reader_, plan, ranks, 2, state);
      ids.insert(ids.end(), more.begin(), more.end());
      const auto rest = take_on_ranks(*reader_, plan, 3, kAll, state);
      ids.insert(ids.end(), rest.begin(), rest.end());
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(ids.size(), kSamples) << at << " steps, then " << ranks << " ranks";
      for (std::size_t i = 0; i < kSamples; ++i) ASSERT_EQ(ids[i], static_cast<std::int64_t>(i));
    }
  }
}

TEST_F(LoaderTest, ResumedOnTheSameRanksItContinuesAsWithoutInterruption) {
  const PlanOptions plan = alone();
  Loader whole(*reader_, plan, 0, nullptr);
  const auto expected = take(whole, kAll);
  for (const std::uint64_t at : {1U, 2U, 5U, 11U}) {
    Loader killed(*reader_, plan, 0, nullptr);
    auto ids = take(killed, at);
    Loader resumed(*reader_, plan, 0, nullptr);
    resume(resumed, state_of(killed));
    const auto rest = take(resumed, kAll);
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, expected) << at;
    EXPECT_EQ(state_of(resumed), state_of(whole));
    EXPECT_EQ(take(resumed, kAll), expected) << "the loop after that is a whole epoch";
  }
}

TEST_F(LoaderTest, AnUnfinishedStepIsRepeatedWhole) {
  PlanOptions plan = options(64, 3);
  plan.ranks = 1;
  Loader killed(*reader_, plan, 0, nullptr);
  std::vector<std::int64_t> second;  // step
  std::string state;
  bool inside = false;
  for (const Batch& batch : killed) {
    if (batch.step == 2) break;
    if (batch.step == 0) continue;
    inside = inside || !batch.last_of_step;
    if (!batch.last_of_step) state = state_of(killed);
    const auto* data = batch.sample_ids.data_ptr<std::int64_t>();
    second.insert(second.end(), data, data + batch.sample_ids.size(0));
  }
  ASSERT_TRUE(inside) << "the step has a single micro-batch";
  Loader resumed(*reader_, plan, 0, nullptr);
  resume(resumed, state);
  EXPECT_EQ(take(resumed, 1), second);
}

TEST_F(LoaderTest, TheStepNumberContinuesAfterResuming) {
  PlanOptions plan = options(150, 2);
  std::string state;
  take_on_ranks(*reader_, plan, 2, 2, state);
  plan.ranks = 1;
  Loader resumed(*reader_, plan, 0, nullptr);
  resume(resumed, state);
  EXPECT_EQ((*resumed.begin()).step, 2);
}

TEST_F(LoaderTest, AnEpochChosenAfterTheResumedOneIsWhole) {
  Loader loader(*reader_, options(), world());
  std::string state;
  take_on_ranks(*reader_, options(), 2, 3, state);
  resume(loader, state);
  take(loader, kAll);
  loader.set_epoch(1);
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
}

TEST_F(LoaderTest, OnlyTheResumedEpochMayBeChosenUntilItHasBegun) {
  PlanOptions plan = alone();
  plan.epoch = 3;
  Loader killed(*reader_, plan, 0, nullptr);
  const auto ids = take(killed, 2);
  Loader loader(*reader_, alone(), 0, nullptr);
  resume(loader, state_of(killed));
  // An earlier epoch would train on samples again, a later one would skip the rest of this one.
  for (const std::uint64_t other : {0U, 4U}) {
    EXPECT_THAT([&] { loader.set_epoch(other); },
                ThrowsMessage<UsageError>(AllOf(HasSubstr(fmt::format("epoch {} ", other)),
                                                HasSubstr("the resumed state continues in epoch 3"),
                                                HasSubstr("loader.epoch()"))));
  }
  EXPECT_EQ(loader.epoch(), 3U);
  loader.set_epoch(3);
  const auto rest = take(loader, kAll);
  EXPECT_EQ(ids.size() + rest.size(), kSamples);
  EXPECT_NO_THROW(loader.set_epoch(0)) << "the resumed epoch is over";
}

TEST_F(LoaderTest, AStateThatWasChangedIsRefused) {
  Loader loader(*reader_, alone(), 0, nullptr);
  take(loader, 5);
  const std::string good = state_of(loader);
  const auto expect_refused = [&](const std::string& state, const std::string& why) {
    Loader resumed(*reader_, alone(), 0, nullptr);
    EXPECT_THAT([&] { resume(resumed, state); }, ThrowsMessage<Error>(HasSubstr(why))) << state;
  };
  const auto json = nlohmann::json::parse(good);
  const auto flat = json.flatten();
  for (const auto& [where, value] : flat.items()) {
    auto changed = json;
    nlohmann::json& member = changed[nlohmann::json::json_pointer(where)];
    if (where == "/checksum") continue;
    if (value.is_number()) {
      member = value.get<std::int64_t>() + 1;
    } else if (value.is_string() && !value.get<std::string>().empty()) {
      std::string text = value;
      text.back() = text.back() == '0' ? '1' : '0';
      member = text;
    } else {
      continue;
    }
    expect_refused(changed.dump(), "the checksum of the loader's state does not match");
  }
  auto carried = json;
  carried["plan"]["carried"].push_back(1);
  expect_refused(carried.dump(), "the checksum of the loader's state does not match");
  auto without = json;
  without.erase("checksum");
  expect_refused(without.dump(), "the loader's state has no checksum");
  Loader resumed(*reader_, alone(), 0, nullptr);
  EXPECT_NO_THROW(resume(resumed, json.dump(2))) << "another formatting is the same state";
}

TEST_F(LoaderTest, RefusesToResumeWithOtherDataOrAnotherOrder) {
  const PlanOptions plan = alone();
  Loader loader(*reader_, plan, 0, nullptr);
  take(loader, 2);
  const std::string state = state_of(loader);
  PlanOptions other = plan;
  other.seed = 7;
  Loader seed(*reader_, other, 0, nullptr);
  EXPECT_THAT([&] { resume(seed, state); }, ThrowsMessage<Error>(HasSubstr("seed")));
  other = plan;
  other.order = Order::sequential;
  Loader order(*reader_, other, 0, nullptr);
  EXPECT_THAT([&] { resume(order, state); }, ThrowsMessage<Error>(HasSubstr("order")));
  const auto changed = make<std::uint32_t>(4);
  Loader data(*changed, plan, 0, nullptr);
  EXPECT_THAT([&] { resume(data, state); }, ThrowsMessage<Error>(HasSubstr("belongs to other data")));
  EXPECT_THROW(resume(loader, "{}"), Error);
  EXPECT_THROW(resume(loader, state.substr(0, state.size() / 2)), Error);
}

// The last rank differs from the others.
class OneRankDiffers : public LoaderTest {
 protected:
  OneRankDiffers() : last_(world().size() - 1), other_(world().rank() == last_) {}

  template <typename Call>
  void expect_error_that_names(const Call& call, const std::string& what, const std::string& value) {
    EXPECT_THAT(call, ThrowsMessage<Error>(::testing::AllOf(HasSubstr(what + " is "),
                                                            HasSubstr(" on rank 0 and " + value),
                                                            HasSubstr(fmt::format(" on rank {}; ", last_)))));
  }
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  }

  const int last_;
  const bool other_;
};

TEST_F(OneRankDiffers, WhenTheLoaderIsConstructed) {
  PlanOptions plan = options();
  const auto make_loader = [&] { const Loader loader(*reader_, plan, world()); };
  if (other_) plan.cap = 256;
  expect_error_that_names(make_loader, "the cap", "256");
  plan = options();
  if (other_) plan.seed = 8;
  expect_error_that_names(make_loader, "the seed", "8");
  plan = options();
  if (other_) plan.cost.b = 2;
  expect_error_that_names(make_loader, "the cost", "10,2");
  plan = options();
  if (other_) reader_ = make<std::uint32_t>(4);
  expect_error_that_names(make_loader, "the data's fingerprint", "");
}

TEST_F(OneRankDiffers, WhenALoopBegins) {
  std::string state;
  take_on_ranks(*reader_, options(), 2, 3, state);
  Loader loader(*reader_, options(), world());
  if (!other_) resume(loader, state);
  expect_error_that_names([&] { loader.begin(); }, "the resumed state", "none");
  std::string later = state;
  take_on_ranks(*reader_, options(), 2, 2, later);
  Loader apart(*reader_, options(), world());
  resume(apart, other_ ? later : state);
  expect_error_that_names([&] { apart.begin(); }, "the resumed state", "epoch 0 after 5 steps (");
  Loader epochs(*reader_, options(), world());
  if (other_) epochs.set_epoch(4);
  expect_error_that_names([&] { epochs.begin(); }, "the epoch", "4");
  Loader same(*reader_, options(), world());
  resume(same, state);
  EXPECT_NO_THROW(same.begin());
}

}  // namespace
}  // namespace lockstep::data
