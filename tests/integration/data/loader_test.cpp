// The loader gives every sample once, in batches with the packed tokens.
#include "runtime/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "common/error.h"
#include "runtime/data/plan/planner.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

TEST_F(LoaderTest, RanksTogetherSeeEverySampleOnceInEveryEpoch) {
  Loader loader(*reader_, options(), world(), {.workers = 2});
  for (const std::uint64_t epoch : {0U, 1U, 2U}) {
    loader.set_epoch(epoch);
    EXPECT_THAT(seen_on_all_ranks(loader), Each(1)) << "epoch " << epoch;
  }
}

TEST_F(LoaderTest, RanksHaveTheSameStepsAndTheirOwnNumbersOfMicroBatches) {
  PlanOptions plan = options(64, 3);
  plan.ranks = world().size();
  const Plan planned = make_plan(lengths_from_pack(*reader_, "test").tokens, plan);
  Loader loader(*reader_, plan, world());
  std::int64_t step = 0;
  std::size_t in_step = 0;
  for (const Batch& batch : loader) {
    ASSERT_EQ(batch.step, step);
    ++in_step;
    const std::size_t own = planned.micro_batches(static_cast<std::size_t>(step), world().rank());
    EXPECT_EQ(batch.last_of_step, in_step == std::max<std::size_t>(1, own)) << "step " << step;
    EXPECT_EQ(batch.empty, own == 0);
    if (!batch.last_of_step) continue;
    ++step;
    in_step = 0;
  }
  EXPECT_EQ(step, static_cast<std::int64_t>(planned.steps()));
}

TEST_F(LoaderTest, AnUnevenPlanIsReportedOnceWithABetterSizeOfSteps) {
  PlanOptions plan = options(64, 1);
  plan.step_stretch = 1;
  ::testing::internal::CaptureStderr();
  Loader loader(*reader_, plan, world());
  for (const std::uint64_t epoch : {0U, 1U}) {
    loader.set_epoch(epoch);
    seen_on_all_ranks(loader);
  }
  const std::string printed = ::testing::internal::GetCapturedStderr();
  if (world().size() == 1 || world().rank() > 0) {
    EXPECT_EQ(printed, "");
    return;
  }
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1) << printed;
  EXPECT_THAT(printed, HasSubstr("% more work than the mean"));
  plan.ranks = world().size();
  const auto at = printed.find("plan.step_tokens = ");
  ASSERT_NE(at, std::string::npos) << printed;
  plan.step_tokens = std::stoul(printed.substr(at + 19));
  ::testing::internal::CaptureStderr();
  const Loader followed(*reader_, plan, 0, nullptr);
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("more work than the mean")))
      << "the recommended size is even";
}

TEST_F(LoaderTest, SaysOnceHowLargeStepsAreIfTheProgramChoosesTheirTokens) {
  PlanOptions plan = options(64, 3);
  plan.step_tokens = 200;
  ::testing::internal::CaptureStderr();
  Loader loader(*reader_, plan, world());
  for (const std::uint64_t epoch : {0U, 1U}) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) static_cast<void>(batch);
  }
  const std::string printed = ::testing::internal::GetCapturedStderr();
  const std::string words = "of the 200 tokens of step_tokens on average";
  const std::size_t first = printed.find(words);
  EXPECT_EQ(first != std::string::npos, world().rank() == 0) << printed;
  if (world().rank() != 0) return;
  EXPECT_EQ(printed.find(words, first + 1), std::string::npos) << printed;
}

// A last step is not full, so its size says nothing about the others.
TEST_F(LoaderTest, DoesNotSayHowLargeTheRestOfOneStepIs) {
  PlanOptions plan = alone();
  plan.step_tokens = 200;
  Loader whole(*reader_, plan, 0, nullptr);
  std::uint64_t steps = 0;
  for (const Batch& batch : whole) steps += batch.last_of_step ? 1 : 0;
  for (const bool one_step_is_left : {false, true}) {
    Loader first(*reader_, plan, 0, nullptr);
    take(first, steps - (one_step_is_left ? 1 : 2));
    Loader resumed(*reader_, plan, 0, nullptr);
    resume(resumed, state_of(first));
    ::testing::internal::CaptureStderr();
    take(resumed, kAll);
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find("steps hold") == std::string::npos,
              one_step_is_left);
    ::testing::internal::CaptureStderr();
    resumed.set_epoch(resumed.epoch() + 1);
    take(resumed, 1);
    EXPECT_EQ(::testing::internal::GetCapturedStderr().find("steps hold") != std::string::npos,
              one_step_is_left)
        << "the next epoch's steps are";
  }
}

TEST_F(LoaderTest, SaysOnceThatAnEpochHasNoSteps) {
  PlanOptions plan = options();
  plan.ranks = 128;  // more than there are samples
  plan.tail = Tail::drop;
  Loader loader(*reader_, plan, 0, nullptr);
  ::testing::internal::CaptureStderr();
  for (const std::uint64_t epoch : {0U, 1U}) {
    loader.set_epoch(epoch);
    for (const Batch& batch : loader) FAIL() << "batch of step " << batch.step;
  }
  EXPECT_EQ(
      ::testing::internal::GetCapturedStderr(),
      "lockstep: epoch 0 of the loader has no steps: 101 samples for 128 ranks with tail = drop and too_long = refuse; use tail = fill, or more data\n");
  plan.tail = Tail::fill;
  Loader filled(*reader_, plan, 0, nullptr);
  take(filled, 1);
  const std::string at_the_end = state_of(filled);
  Loader resumed(*reader_, plan, 0, nullptr);
  resume(resumed, at_the_end);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(take(resumed, kAll).size(), 0U);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "") << "the epoch had a step before it was resumed";
}

TEST_F(LoaderTest, AModelMayCommunicateInForwardOfEachMicroBatch) {
  PlanOptions plan = options(64, 3);
  plan.equal_micro_batches = true;
  Loader loader(*reader_, plan, world());
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < kSamples; ++i) expected += length_of(i);
  std::int64_t tokens = 0;
  std::int64_t step = 0;
  for (const Batch& batch : loader) {
    std::int64_t sums[] = {batch.token_count, batch.step};
    world().communicator().all_reduce({sums, 2, comm::DataType::i64}, "in forward")->wait();
    tokens += sums[0];
    EXPECT_EQ(sums[1], batch.step * world().size()) << "the ranks are in different steps";
    EXPECT_EQ(batch.step, step);
    step += batch.last_of_step ? 1 : 0;
  }
  EXPECT_EQ(tokens, expected);
}

// On the last rank samples are shorter, but the fingerprint is the same.
class ShorterOnTheLastRank final : public WatchedReader {
 public:
  explicit ShorterOnTheLastRank(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override {
    const std::uint64_t tokens = WatchedReader::tokens(i);
    return world().rank() + 1 == world().size() ? (tokens + 1) / 2 : tokens;
  }
};

TEST_F(LoaderTest, RanksThatDoNotPlanTheSameAreTold) {
  if (world().size() == 1) GTEST_SKIP() << "needs two ranks";
  const ShorterOnTheLastRank reader(*reader_);
  Loader loader(reader, options(), world());
  EXPECT_THAT([&] { loader.begin(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("the ranks' loaders differ: the plan from step 0 on is "),
                                         HasSubstr(" on rank 0 and "))));
}

// On the last rank, sample 7 is longer than the cap.
class OverLongOnTheLastRank final : public WatchedReader {
 public:
  explicit OverLongOnTheLastRank(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override {
    return i == 7 && world().rank() + 1 == world().size() ? 1000 : WatchedReader::tokens(i);
  }
};

TEST_F(LoaderTest, ASampleThatOneRankCannotLoadIsNamedOnAllRanks) {
  const int last = world().size() - 1;
  const std::string at = fmt::format("rank {} could not construct its loader: ", last);
  const bool other = world().rank() != last;
  const OverLongOnTheLastRank reader(*reader_);
  EXPECT_THAT(
      [&] { Loader(reader, options(), world()); },
      ThrowsMessage<Error>(StartsWith((other ? at : "") + "sample 's007' (number 7) has 1000 tokens")));
  const int ahead = other ? 4 : 0;
  EXPECT_THAT([&] { Loader(*reader_, options(), world(), {.batches_ahead = ahead}); },
              ThrowsMessage<Error>(StartsWith((other ? at : "") + "batches_ahead must be at least 1")));
  Loader loader(*reader_, options(), world());
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
}

// Sample 7 has more pieces than the loader counts, which planning finds.
class EndlessSample final : public WatchedReader {
 public:
  explicit EndlessSample(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override { return i == 7 ? 70'000 : WatchedReader::tokens(i); }
};

TEST_F(LoaderTest, PlanningThatFailedIsTriedAgainInTheNextLoop) {
  const EndlessSample reader(*reader_);
  PlanOptions plan = options(1, 1);
  plan.too_long = TooLong::split;
  Loader loader(reader, plan, world());
  for (int attempt = 0; attempt < 3; ++attempt) {
    EXPECT_THAT([&] { loader.begin(); }, ThrowsMessage<Error>(HasSubstr("sample 7 has 70000 tokens")));
  }
}

TEST_F(LoaderTest, BatchesHaveTheirSamplesEndToEnd) {
  const std::vector<std::function<std::unique_ptr<pack::Reader>()>> packs = {
      [this] { return make<std::uint16_t>(2); }, [this] { return make<std::uint32_t>(4); }};
  for (const auto& make_pack : packs) {
    const auto reader = make_pack();
    for (const bool mapped : {true, false}) {
      Loader loader(*reader, options(), world(), {.mapped = mapped});
      for (const Batch& batch : loader) {
        const auto samples = batch.sample_ids.size(0);
        expect_packed_samples(batch);
        ASSERT_EQ(batch.tokens.size(0), batch.positions.size(0));
        ASSERT_LE(batch.tokens.size(0), 128);
        ASSERT_EQ(batch.cu_seqlens[samples].item<std::int32_t>(), batch.tokens.size(0));
        EXPECT_EQ(batch.tokens.scalar_type(), torch::kInt64);
        EXPECT_EQ(batch.cu_seqlens.scalar_type(), torch::kInt32);
        EXPECT_EQ(batch.empty, samples == 0);
        EXPECT_EQ(batch.loss_tokens, batch.token_count - samples);
        std::int64_t longest = 0;
        for (std::int64_t i = 0; i < samples; ++i) {
          const auto begin = batch.cu_seqlens[i].item<std::int32_t>();
          const auto end = batch.cu_seqlens[i + 1].item<std::int32_t>();
          longest = std::max<std::int64_t>(longest, end - begin);
          for (std::int32_t t = begin; t < end; ++t) {
            ASSERT_EQ(batch.positions[t].item<std::int64_t>(), t - begin);
            ASSERT_EQ(batch.loss_mask[t].item<bool>(), t > begin) << "a sample's first token does not count";
          }
        }
        EXPECT_EQ(batch.max_length, longest);
      }
    }
  }
}

TEST_F(LoaderTest, ARankWithoutSamplesInAStepGetsOneEmptyBatch) {
  PlanOptions plan = options(100000, 1);
  plan.ranks = kSamples + 1;  // one rank has none
  std::vector<std::int64_t> without;
  for (int rank = 0; rank < plan.ranks; ++rank) {
    Loader loader(*reader_, plan, rank, nullptr, {.workers = 1, .next_epoch_ahead = false});
    int batches = 0;
    for (const Batch& batch : loader) {
      ++batches;
      EXPECT_TRUE(batch.last_of_step);
      if (!batch.empty) continue;
      without.push_back(rank);
      EXPECT_EQ(batch.tokens.size(0), 0);
      EXPECT_EQ(batch.cu_seqlens.size(0), 1);
      EXPECT_EQ(batch.cu_seqlens[0].item<std::int32_t>(), 0);
    }
    EXPECT_EQ(batches, 1);
  }
  EXPECT_EQ(without.size(), 1U);
}

TEST_F(LoaderTest, SequentialOrderIsTheSameInEveryEpoch) {
  PlanOptions plan = alone();
  plan.order = Order::sequential;
  Loader loader(*reader_, plan, 0, nullptr);
  const auto ids = [&] {
    std::vector<std::vector<std::int64_t>> all;
    for (const Batch& batch : loader) {
      const auto* data = batch.sample_ids.data_ptr<std::int64_t>();
      all.emplace_back(data, data + batch.sample_ids.size(0));
    }
    return all;
  };
  const auto first = ids();
  loader.set_epoch(1);
  EXPECT_EQ(first, ids());
}

TEST_F(LoaderTest, PaddedBatchesHaveASamplePerRow) {
  PlanOptions plan = options();
  plan.padded = true;
  Loader loader(*reader_, plan, world(), {.padding_token = -7});
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
  for (const Batch& batch : loader) {
    if (batch.empty) continue;
    const auto rows = batch.sample_ids.size(0);
    const auto row = batch.tokens.size(1);
    EXPECT_LE(rows * row, 128);
    EXPECT_EQ(row, padded_length(static_cast<std::uint64_t>(batch.max_length), plan.pad_multiple, plan.cap));
    ASSERT_EQ(batch.tokens.sizes(), batch.positions.sizes());
    ASSERT_EQ(batch.tokens.sizes(), batch.loss_mask.sizes());
    ASSERT_EQ(batch.tokens.sizes(), batch.attention_mask.sizes());
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < rows; ++i) {
      const auto sample = static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>());
      const auto length = length_of(sample);
      total += length;
      for (std::int64_t t = 0; t < row; ++t) {
        ASSERT_EQ(batch.tokens[i][t].item<std::int64_t>(), t < length ? token_of(sample, t) : -7);
        ASSERT_EQ(batch.attention_mask[i][t].item<bool>(), t < length);
        ASSERT_EQ(batch.loss_mask[i][t].item<bool>(), t > 0 && t < length);
        ASSERT_EQ(batch.positions[i][t].item<std::int64_t>(), t);
      }
      EXPECT_EQ(batch.cu_seqlens[i + 1].item<std::int32_t>(), total);
    }
    EXPECT_EQ(batch.token_count, total);
    EXPECT_EQ(batch.loss_tokens, total - rows);
    EXPECT_EQ(batch.padding, rows * row - total);
  }
}

TEST_F(LoaderTest, SamplesOverTheCapAreTruncatedOrCutIntoPiecesAsAsked) {
  for (const TooLong too_long : {TooLong::truncate, TooLong::split, TooLong::skip}) {
    PlanOptions plan = alone();
    plan.cap = 25;
    plan.too_long = too_long;
    Loader loader(*reader_, plan, 0, nullptr, {.next_epoch_ahead = false});
    std::map<std::int64_t, std::int64_t> tokens;  // of each sample
    for (const Batch& batch : loader) {
      ASSERT_LE(batch.token_count, 25);
      for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
        const auto id = static_cast<SampleId>(batch.sample_ids[i].item<std::int64_t>());
        const auto begin = batch.cu_seqlens[i].item<std::int32_t>();
        const auto length = batch.cu_seqlens[i + 1].item<std::int32_t>() - begin;
        const auto first = static_cast<std::int64_t>(25 * piece_of(id));
        for (std::int32_t t = 0; t < length; ++t) {
          ASSERT_EQ(batch.tokens[begin + t].item<std::int64_t>(), token_of(sample_of(id), first + t));
        }
        tokens[static_cast<std::int64_t>(sample_of(id))] += length;
      }
    }
    for (std::size_t i = 0; i < kSamples; ++i) {
      const std::int64_t whole = length_of(i);
      const std::int64_t over = too_long == TooLong::split ? whole : too_long == TooLong::skip ? 0 : 25;
      EXPECT_EQ(tokens[static_cast<std::int64_t>(i)], whole <= 25 ? whole : over);
    }
  }
}

// Doubles tokens, masks a prompt of two tokens, and removes the last token of samples of more than three.
void shorten_and_mask(Sample& sample) {
  for (std::int64_t& token : sample.tokens) token *= 2;
  for (std::size_t i = 0; i < std::min<std::size_t>(2, sample.loss_mask.size()); ++i)
    sample.loss_mask[i] = false;
  if (sample.tokens.size() > 3) sample.tokens = sample.tokens.first(sample.tokens.size() - 1);
}

TEST_F(LoaderTest, TransformsChangeTokensMasksAndLengths) {
  for (const bool padded : {false, true}) {
    PlanOptions plan = alone();
    plan.padded = padded;
    Loader loader(*reader_, plan, 0, nullptr, {.workers = 2, .transform = shorten_and_mask});
    for (const Batch& batch : loader) {
      std::int64_t total = 0;
      std::int64_t counted = 0;
      for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
        const auto sample = static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>());
        const auto length = length_of(sample) > 3 ? length_of(sample) - 1 : length_of(sample);
        const auto tokens = padded ? batch.tokens[i] : batch.tokens.narrow(0, total, length);
        for (std::int64_t t = 0; t < length; ++t) {
          ASSERT_EQ(tokens[t].item<std::int64_t>(), 2 * token_of(sample, t));
        }
        total += length;
        counted += std::max<std::int64_t>(0, length - 2);
        ASSERT_EQ(batch.cu_seqlens[i + 1].item<std::int32_t>(), total);
      }
      EXPECT_EQ(batch.token_count, total);
      EXPECT_EQ(batch.loss_tokens, counted);
      EXPECT_EQ(batch.loss_mask.sum().item<std::int64_t>(), counted);
      if (!padded) {
        EXPECT_EQ(batch.tokens.size(0), total);
      }
    }
  }
}

TEST_F(LoaderTest, RefusesInvalidOptionsAndData) {
  EXPECT_THAT([&] { Loader(*reader_, options(59), world()); },
              ThrowsMessage<Error>(AllOf(HasSubstr("'s0"), HasSubstr("60 tokens"), HasSubstr("cap of 59"))));
  EXPECT_THROW(Loader(*reader_, alone(), 1, nullptr), UsageError);
  PlanOptions endless = alone();
  endless.cap = std::uint64_t{1} << 31U;
  EXPECT_THROW(Loader(*reader_, endless, 0, nullptr), UsageError);
  EXPECT_THROW(Loader(*reader_, alone(), 0, nullptr, {.batches_ahead = 0}), UsageError);
  EXPECT_THROW(Loader(*reader_, alone(), 0, nullptr, {.workers = -1}), UsageError);
  const torch::Device nowhere(torch::kCUDA, 100);
  EXPECT_THAT([&] { Loader(*reader_, alone(), 0, nullptr, {.device = nowhere}); },
              ThrowsMessage<UsageError>(AllOf(HasSubstr("cuda:100"), Not(HasSubstr("\n")))));
  const auto no_tokens = make<std::uint16_t>(0);
  EXPECT_THAT([&] { Loader(*no_tokens, alone(), 0, nullptr); },
              ThrowsMessage<Error>(HasSubstr("its samples are not tokens")));
}

}  // namespace
}  // namespace lockstep::data
