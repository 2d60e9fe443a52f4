// What the loader hands out: every sample once, in batches that hold what was packed.
#include "runtime/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "common/error.h"
#include "tests/integration/loader_fixture.h"

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

TEST_F(LoaderTest, AllRanksHaveTheSameStepsAndMicroBatches) {
  Loader loader(*reader_, options(128, 3), world());
  std::int64_t batches = 0;
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.step, batches / 3);
    EXPECT_EQ(batch.last_of_step, batches % 3 == 2);
    ++batches;
  }
  EXPECT_EQ(batches, micro_batches_of(*reader_, options(128, 3), world().size()));
  std::int64_t most = batches;
  world()
      .communicator()
      .all_reduce({&most, 1, comm::DataType::i64}, "batches", {.op = comm::ReduceOp::max})
      ->wait();
  EXPECT_EQ(batches, most);
}

TEST_F(LoaderTest, RanksOfANodePlanEachBlockOnce) {
  Loader loader(*reader_, options(), world(), {.next_epoch_ahead = false});
  constexpr std::uint64_t kEpochs = 4;
  for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch) {
    loader.set_epoch(epoch);
    EXPECT_THAT(seen_on_all_ranks(loader), Each(1)) << "epoch " << epoch;
  }
  auto planned = static_cast<std::int64_t>(loader.planned_for_node());
  world().communicator().all_reduce({&planned, 1, comm::DataType::i64}, "planned")->wait();
  // Of each epoch the only block, and that there is no other.
  const int nodes = world().local_size() > 1 ? world().nodes() : 0;
  EXPECT_EQ(planned, 2 * static_cast<std::int64_t>(kEpochs) * nodes);
}

// What one node was given, without it showing in the fingerprint.
class ShorterOnOneNode final : public WatchedReader {
 public:
  explicit ShorterOnOneNode(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override {
    const std::uint64_t tokens = WatchedReader::tokens(i);
    return world().node() > 0 ? (tokens + 1) / 2 : tokens;
  }
};

TEST_F(LoaderTest, NodesThatDoNotPlanTheSameAreTold) {
  if (world().nodes() == 1) GTEST_SKIP() << "needs two nodes";
  const ShorterOnOneNode reader(*reader_);
  Loader loader(reader, options(), world());
  EXPECT_THAT([&] { loader.begin(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("the plan of block 0 is '"), HasSubstr(" on rank 0"))));
}

// A pack of which the last rank has another.
class OverLongOnTheLastRank final : public WatchedReader {
 public:
  explicit OverLongOnTheLastRank(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override {
    return i == 7 && world().rank() + 1 == world().size() ? 1000 : WatchedReader::tokens(i);
  }
};

TEST_F(LoaderTest, WhatOneRankCannotLoadIsNamedOnAllRanks) {
  const int last = world().size() - 1;
  const std::string at = fmt::format("rank {} could not make its loader: ", last);
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

// A pack whose sample 7 has more pieces of a token than are counted, which shows when it is planned.
class EndlessSample final : public WatchedReader {
 public:
  explicit EndlessSample(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
  std::uint64_t tokens(std::size_t i) const override { return i == 7 ? 70'000 : WatchedReader::tokens(i); }
};

TEST_F(LoaderTest, WhatCouldNotBePlannedIsTriedAgainOnceByEachNodeWhenALoopBeginsAnew) {
  if (world().local_size() == 1) GTEST_SKIP() << "needs two ranks on a node";
  const EndlessSample reader(*reader_);
  PlanOptions plan = options(1, 1);
  plan.too_long = TooLong::split;
  Loader loader(reader, plan, world());
  for (std::int64_t attempts = 1; attempts <= 3; ++attempts) {
    EXPECT_THAT([&] { loader.begin(); }, ThrowsMessage<Error>(HasSubstr("sample 7 has 70000 tokens")));
    auto planned = static_cast<std::int64_t>(loader.planned_for_node());
    world().communicator().all_reduce({&planned, 1, comm::DataType::i64}, "attempts")->wait();
    EXPECT_EQ(planned, attempts * world().nodes());
  }
}

TEST_F(LoaderTest, BatchesHoldTheirSamplesEndToEnd) {
  const std::vector<std::function<std::unique_ptr<pack::Reader>()>> packs = {
      [this] { return make<std::uint16_t>(2); }, [this] { return make<std::uint32_t>(4); }};
  for (const auto& make_pack : packs) {
    const auto reader = make_pack();
    for (const bool mapped : {true, false}) {
      Loader loader(*reader, options(), world(), {.mapped = mapped});
      for (const Batch& batch : loader) {
        const auto samples = batch.sample_ids.size(0);
        ASSERT_EQ(batch.cu_seqlens.size(0), samples + 1);
        ASSERT_EQ(batch.tokens.size(0), batch.positions.size(0));
        ASSERT_LE(batch.tokens.size(0), 128);
        ASSERT_EQ(batch.cu_seqlens[samples].item<std::int32_t>(), batch.tokens.size(0));
        EXPECT_EQ(batch.tokens.scalar_type(), torch::kInt64);
        EXPECT_EQ(batch.cu_seqlens.scalar_type(), torch::kInt32);
        EXPECT_EQ(batch.empty, samples == 0);
        std::int64_t longest = 0;
        for (std::int64_t i = 0; i < samples; ++i) {
          const auto sample = static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>());
          const auto begin = batch.cu_seqlens[i].item<std::int32_t>();
          const auto end = batch.cu_seqlens[i + 1].item<std::int32_t>();
          ASSERT_EQ(end - begin, length_of(sample));
          longest = std::max<std::int64_t>(longest, end - begin);
          for (std::int32_t t = begin; t < end; ++t) {
            ASSERT_EQ(batch.positions[t].item<std::int64_t>(), t - begin);
            ASSERT_EQ(batch.tokens[t].item<std::int64_t>(), token_of(sample, t - begin));
          }
        }
        EXPECT_EQ(batch.max_length, longest);
      }
    }
  }
}

TEST_F(LoaderTest, ALastStepThatIsNotFullHasEmptyBatches) {
  PlanOptions plan = options(100000, 3);
  Loader loader(*reader_, plan, world());
  int empty = 0;
  for (const Batch& batch : loader) {
    if (!batch.empty) continue;
    ++empty;
    EXPECT_EQ(batch.tokens.size(0), 0);
    EXPECT_EQ(batch.cu_seqlens.size(0), 1);
    EXPECT_EQ(batch.cu_seqlens[0].item<std::int32_t>(), 0);
  }
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
  // With a micro-batch for each sample and more, some must be empty.
  plan.accumulate = kSamples + 1;
  Loader wide(*reader_, plan, world());
  for (const Batch& batch : wide) empty += batch.empty ? 1 : 0;
  EXPECT_GT(empty, 0);
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

TEST_F(LoaderTest, PaddedBatchesHoldASamplePerRow) {
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

TEST_F(LoaderTest, OverLongSamplesAreCutOrInPiecesAsAsked) {
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

TEST_F(LoaderTest, TheLossMaskLeavesOutEachSamplesFirstToken) {
  Loader loader(*reader_, options(), world());
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.loss_tokens, batch.token_count - batch.sample_ids.size(0));
    EXPECT_EQ(batch.loss_mask.sum().item<std::int64_t>(), batch.loss_tokens);
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
      EXPECT_FALSE(batch.loss_mask[batch.cu_seqlens[i].item<std::int32_t>()].item<bool>());
    }
  }
}

// Doubles tokens, masks a prompt of two tokens and leaves out the last token of samples of more than three.
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

TEST_F(LoaderTest, RefusesWhatItCannotDo) {
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
  EXPECT_THAT([&] { Loader(*no_tokens, alone(), 0, nullptr); }, ThrowsMessage<Error>(HasSubstr("no tokens")));
}

}  // namespace
}  // namespace lockstep::data
