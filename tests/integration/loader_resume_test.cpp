// A loader goes on where another one was, on any number of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/data/loader.h"
#include "tests/integration/loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The same on so many ranks, one after the other; leaves the state behind it in `state`.
std::vector<std::int64_t> take_on_ranks(const pack::Reader& reader, PlanOptions plan, int ranks,
                                        std::uint64_t micro_batches, std::string& state) {
  std::vector<std::int64_t> ids;
  plan.ranks = ranks;
  std::string after;
  for (int rank = 0; rank < ranks; ++rank) {
    Loader loader(reader, plan, rank, nullptr, {.workers = 1});
    if (!state.empty()) loader.resume(state);
    const auto mine = take(loader, micro_batches);
    ids.insert(ids.end(), mine.begin(), mine.end());
    EXPECT_TRUE(rank == 0 || after == loader.state()) << "rank " << rank << " is elsewhere";
    after = loader.state();
  }
  state = after;
  return ids;
}

TEST_F(LoaderTest, ResumedAtAnyMicroBatchOnOtherRanksEverySampleIsSeenOnce) {
  PlanOptions plan = options(150, 2);
  plan.epoch = 3;
  for (std::uint64_t at = 0; at <= 13; ++at) {
    for (const int ranks : {1, 2, 3, 5}) {
      std::string state;
      auto ids = take_on_ranks(*reader_, plan, 2, at, state);
      const auto more = take_on_ranks(*reader_, plan, ranks, 3, state);
      ids.insert(ids.end(), more.begin(), more.end());
      const auto rest = take_on_ranks(*reader_, plan, 3, kAll, state);
      ids.insert(ids.end(), rest.begin(), rest.end());
      std::sort(ids.begin(), ids.end());
      ASSERT_EQ(ids.size(), kSamples) << at << " micro-batches, then " << ranks << " ranks";
      for (std::size_t i = 0; i < kSamples; ++i) ASSERT_EQ(ids[i], static_cast<std::int64_t>(i));
    }
  }
}

TEST_F(LoaderTest, ResumedOnAsManyRanksItGoesOnAsIfNothingHadHappened) {
  const PlanOptions plan = alone();
  Loader whole(*reader_, plan, 0, nullptr);
  const auto expected = take(whole, kAll);
  for (const std::uint64_t at : {1U, 2U, 5U, 13U}) {
    Loader killed(*reader_, plan, 0, nullptr);
    auto ids = take(killed, at);
    Loader resumed(*reader_, plan, 0, nullptr);
    resumed.resume(killed.state());
    const auto rest = take(resumed, kAll);
    ids.insert(ids.end(), rest.begin(), rest.end());
    EXPECT_EQ(ids, expected) << at;
    EXPECT_EQ(resumed.state(), whole.state());
    EXPECT_EQ(take(resumed, kAll), expected) << "the loop after that is a whole epoch";
  }
}

TEST_F(LoaderTest, StepsAreCountedOnAfterResuming) {
  PlanOptions plan = options(150, 2);
  std::string state;
  take_on_ranks(*reader_, plan, 2, 4, state);
  plan.ranks = 1;
  Loader resumed(*reader_, plan, 0, nullptr);
  resumed.resume(state);
  EXPECT_EQ((*resumed.begin()).step, 2);
}

TEST_F(LoaderTest, AnEpochChosenAfterResumingIsWhole) {
  Loader loader(*reader_, options(), world());
  std::string state;
  take_on_ranks(*reader_, options(), 2, 3, state);
  loader.resume(state);
  loader.set_epoch(1);
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
}

TEST_F(LoaderTest, AnEpochBeforeTheResumedOneIsRefusedSinceItWouldBeTrainedOnAgain) {
  PlanOptions plan = alone();
  plan.epoch = 3;
  Loader killed(*reader_, plan, 0, nullptr);
  auto ids = take(killed, 2);
  Loader loader(*reader_, alone(), 0, nullptr);
  loader.resume(killed.state());
  EXPECT_THAT([&] { loader.set_epoch(0); },
              ThrowsMessage<UsageError>(HasSubstr("epoch 0 lies before epoch 3")));
  EXPECT_EQ(loader.epoch(), 3U);
  loader.set_epoch(3);
  const auto rest = take(loader, kAll);
  EXPECT_EQ(ids.size() + rest.size(), kSamples);
  EXPECT_NO_THROW(loader.set_epoch(0)) << "what was resumed has been gone through";
}

TEST_F(LoaderTest, RefusesToResumeWithOtherDataOrAnotherOrder) {
  const PlanOptions plan = alone();
  Loader loader(*reader_, plan, 0, nullptr);
  take(loader, 2);
  const std::string state = loader.state();
  PlanOptions other = plan;
  other.seed = 7;
  Loader seed(*reader_, other, 0, nullptr);
  EXPECT_THAT([&] { seed.resume(state); }, ThrowsMessage<Error>(HasSubstr("seed")));
  other = plan;
  other.order = Order::sequential;
  Loader order(*reader_, other, 0, nullptr);
  EXPECT_THAT([&] { order.resume(state); }, ThrowsMessage<Error>(HasSubstr("order")));
  const auto changed = make<std::uint32_t>(4);
  Loader data(*changed, plan, 0, nullptr);
  EXPECT_THAT([&] { data.resume(state); }, ThrowsMessage<Error>(HasSubstr("of other data")));
  EXPECT_THROW(loader.resume("{}"), Error);
  EXPECT_THROW(loader.resume(state.substr(0, state.size() / 2)), Error);
}

// One rank is not as the others.
class OneRankDiffers : public LoaderTest {
 protected:
  OneRankDiffers() : last_(world().size() - 1), other_(world().rank() == last_) {}

  template <typename Call>
  void expect_told(const Call& call, const std::string& what) {
    EXPECT_THAT(call, ThrowsMessage<Error>(::testing::AllOf(
                          HasSubstr(what), HasSubstr(fmt::format("on rank {} and ", last_)))));
  }
  void SetUp() override {
    if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  }

  const int last_;
  const bool other_;
};

TEST_F(OneRankDiffers, WhenTheLoaderIsMade) {
  PlanOptions plan = options();
  const auto make_loader = [&] { const Loader loader(*reader_, plan, world()); };
  if (other_) plan.cap = 256;
  expect_told(make_loader, "the cap is '256'");
  plan = options();
  if (other_) plan.seed = 8;
  expect_told(make_loader, "the seed is '8'");
  plan = options();
  if (other_) plan.cost.b = 2;
  expect_told(make_loader, "the cost is '10,2'");
  plan = options();
  if (other_) reader_ = make<std::uint32_t>(4);
  expect_told(make_loader, "the data's fingerprint is '");
}

TEST_F(OneRankDiffers, WhenALoopBegins) {
  std::string state;
  take_on_ranks(*reader_, options(), 2, 3, state);
  Loader loader(*reader_, options(), world());
  if (!other_) loader.resume(state);
  expect_told([&] { loader.begin(); }, "the state it resumes is ''");
  std::string later = state;
  take_on_ranks(*reader_, options(), 2, 2, later);
  Loader apart(*reader_, options(), world());
  apart.resume(other_ ? later : state);
  expect_told([&] { apart.begin(); }, "the state it resumes is 'epoch 0, block 0, 5 micro-batches into it (");
  Loader epochs(*reader_, options(), world());
  if (other_) epochs.set_epoch(4);
  expect_told([&] { epochs.begin(); }, "the epoch is '4'");
  Loader same(*reader_, options(), world());
  same.resume(state);
  EXPECT_NO_THROW(same.begin());
}

}  // namespace
}  // namespace lockstep::data
