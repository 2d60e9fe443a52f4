#include "runtime/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <stdexcept>
#include <thread>

#include "common/cpu_list.h"
#include "common/error.h"
#include "staging/pack/create.h"
#include "staging/pack/reader.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::data {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::world;

constexpr std::size_t kSamples = 101;
constexpr std::int64_t kLongest = 60;

std::int64_t length_of(std::size_t sample) {
  return 1 + static_cast<std::int64_t>(sample * 37 % kLongest);
}
std::int64_t token_of(std::size_t sample, std::int64_t position) {
  return static_cast<std::int64_t>(sample) * 100 + position;
}

// A reader that does something before each read.
class WatchedReader : public pack::Reader {
 public:
  WatchedReader(const pack::Reader& reader, std::function<void(std::size_t)> before)
      : reader_(reader), before_(std::move(before)) {}
  std::size_t size() const override { return reader_.size(); }
  std::uint64_t bytes(std::size_t i) const override { return reader_.bytes(i); }
  std::uint64_t tokens(std::size_t i) const override { return reader_.tokens(i); }
  int token_bytes() const override { return reader_.token_bytes(); }
  std::string_view key(std::size_t i) const override { return reader_.key(i); }
  void read(std::size_t i, std::span<std::byte> into) const override {
    before_(i);
    reader_.read(i, into);
  }
  std::span<const std::byte> view(std::size_t i) const override { return reader_.view(i); }
  std::vector<pack::Part> parts(std::size_t i) const override { return reader_.parts(i); }
  void read_part(std::size_t i, std::size_t p, std::span<std::byte> into) const override {
    reader_.read_part(i, p, into);
  }
  std::string fingerprint() const override { return reader_.fingerprint(); }
  void verify() const override { reader_.verify(); }

 private:
  const pack::Reader& reader_;
  std::function<void(std::size_t)> before_;
};

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : folder_(::testing::TempDir() + "loader_test_" + std::to_string(getpid())) {
    reader_ = make<std::uint16_t>(2);
  }
  ~LoaderTest() override { std::filesystem::remove_all(folder_); }

  // A pack of kSamples samples named s000, s001, ...
  template <typename Token>
  std::unique_ptr<pack::Reader> make(int token_bytes) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ / "files");
    pack::CreateOptions options;
    options.folder = folder_ / "files";
    options.out = folder_ / "pack";
    options.token_bytes = token_bytes;
    options.threads = 1;
    for (std::size_t i = 0; i < kSamples; ++i) {
      options.files.push_back(fmt::format("s{:03}.tok", i));
      std::ofstream file(options.folder / options.files.back(), std::ios::binary);
      for (std::int64_t p = 0; p < length_of(i); ++p) {
        const auto token = static_cast<Token>(token_of(i, p));
        file.write(reinterpret_cast<const char*>(&token), sizeof token);
      }
    }
    pack::create(options);
    return pack::open(options.out);
  }

  static PlanOptions options(std::uint64_t cap = 128, int accumulate = 2) {
    return {.cap = cap, .accumulate = accumulate, .cost = {10, 1}};
  }

  static PlanOptions alone() {
    PlanOptions plan = options();
    plan.ranks = 1;
    return plan;
  }

  std::filesystem::path folder_;
  std::unique_ptr<pack::Reader> reader_;
};

// How often each sample was seen, over all ranks.
std::vector<std::int64_t> seen_on_all_ranks(Loader& loader) {
  std::vector<std::int64_t> seen(kSamples);
  for (const Batch& batch : loader) {
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
      ++seen[static_cast<std::size_t>(batch.sample_ids[i].item<std::int64_t>())];
    }
  }
  world().communicator().all_reduce({seen.data(), seen.size(), comm::DataType::i64}, "samples seen")->wait();
  return seen;
}

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
  EXPECT_EQ(batches, static_cast<std::int64_t>(loader.plan().micro_batches_per_rank()));
  std::int64_t most = batches;
  world()
      .communicator()
      .all_reduce({&most, 1, comm::DataType::i64}, "batches", {.op = comm::ReduceOp::max})
      ->wait();
  EXPECT_EQ(batches, most);
}

TEST_F(LoaderTest, BatchesHoldTheirSamplesEndToEnd) {
  const std::vector<std::function<std::unique_ptr<pack::Reader>()>> packs = {
      [this] { return make<std::uint16_t>(2); }, [this] { return make<std::uint32_t>(4); }};
  for (const auto& make_pack : packs) {
    const auto reader = make_pack();
    Loader loader(*reader, options(), world());
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

// The samples of up to so many micro-batches, on one rank.
std::vector<std::int64_t> take(Loader& loader, std::uint64_t micro_batches) {
  std::vector<std::int64_t> ids;
  if (micro_batches == 0) return ids;
  for (const Batch& batch : loader) {
    const auto* data = batch.sample_ids.data_ptr<std::int64_t>();
    ids.insert(ids.end(), data, data + batch.sample_ids.size(0));
    if (--micro_batches == 0) break;
  }
  return ids;
}

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

constexpr std::uint64_t kAll = ~std::uint64_t{0};

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
  EXPECT_THAT([&] { data.resume(state); }, ThrowsMessage<Error>(HasSubstr("fingerprint")));
  EXPECT_THROW(loader.resume("{}"), Error);
  EXPECT_THROW(loader.resume(state.substr(0, state.size() / 2)), Error);
}

TEST_F(LoaderTest, LeavingTheLoopEarlyLeavesNothingBehind) {
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  Loader loader(*reader_, options(), world(), {.workers = 3});
  const auto before = threads();
  for (const Batch& batch : loader) {
    EXPECT_GT(threads(), before);
    if (batch.step == 1) break;
  }
  EXPECT_EQ(threads(), before);
  const auto loop_that_throws = [&] {
    for (const Batch& batch : loader) {
      if (batch.step == 1) throw std::runtime_error("in the loop");
    }
  };
  EXPECT_THROW(loop_that_throws(), std::runtime_error);
  EXPECT_EQ(threads(), before);
  EXPECT_THAT(seen_on_all_ranks(loader), Each(1));
}

TEST_F(LoaderTest, ASampleThatCannotBeReadEndsTheLoopByItsKey) {
  const WatchedReader reader(*reader_, [](std::size_t i) {
    if (i == 42) throw Error("the shard is gone");
  });
  Loader loader(reader, alone(), 0, nullptr, {.workers = 2});
  std::int64_t batches = 0;
  const auto loop = [&] {
    for (const Batch& batch : loader) batches += batch.empty ? 0 : 1;
  };
  EXPECT_THAT(loop, ThrowsMessage<Error>(AllOf(HasSubstr("'s042'"), HasSubstr("the shard is gone"))));
  EXPECT_LT(batches, static_cast<std::int64_t>(loader.plan().micro_batches_per_rank()));
}

TEST_F(LoaderTest, BatchesThatAreKeptAreNotWrittenOver) {
  Loader loader(*reader_, alone(), 0, nullptr, {.batches_ahead = 1});
  std::vector<Batch> kept;
  std::vector<torch::Tensor> parts;
  for (const Batch& batch : loader) {
    if (kept.size() % 2 == 0) {
      kept.push_back(batch);
    } else {
      kept.push_back({});
      parts.push_back(batch.tokens.narrow(0, 0, 1));  // a view alone holds the memory, too
      kept.back().sample_ids = batch.sample_ids;
    }
  }
  std::size_t part = 0;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    const auto sample = static_cast<std::size_t>(kept[i].sample_ids[0].item<std::int64_t>());
    const torch::Tensor first = i % 2 == 0 ? kept[i].tokens[0] : parts[part++][0];
    EXPECT_EQ(first.item<std::int64_t>(), token_of(sample, 0)) << "batch " << i;
  }
}

TEST_F(LoaderTest, MemoryIsUsedAgainWhenNobodyHoldsIt) {
  Loader loader(*reader_, alone(), 0, nullptr, {.workers = 1, .batches_ahead = 2});
  std::set<const void*> addresses;
  std::size_t batches = 0;
  for (const Batch& batch : loader) {
    addresses.insert(batch.tokens.data_ptr());
    ++batches;
  }
  EXPECT_GT(batches, 10U);
  // Two tensors each of: two that wait, one in use, one that is being built.
  EXPECT_LE(addresses.size(), 8U);
}

TEST_F(LoaderTest, WaitingIsTimedAsDataWait) {
  const WatchedReader reader(*reader_,
                             [](std::size_t) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
  profile::StepTimer timer({}, {.record = false, .folder = {}});
  Loader loader(reader, alone(), 0, &timer, {.workers = 1});
  timer.begin_step();
  std::uint64_t batches = 0;
  for (const Batch& batch : loader) batches += batch.empty ? 0U : 1U;
  timer.end_step({});
  const auto waited = timer.totals().phase_ns[static_cast<std::size_t>(profile::Phase::data_wait)];
  EXPECT_GT(batches, 0U);
  EXPECT_GE(waited, kSamples * 500'000) << "each of the samples took 1 ms to read";
  EXPECT_LE(waited, timer.totals().step_ns);
}

TEST_F(LoaderTest, WorkersRunOnTheWorkerCpus) {
  const int cpu = cpus_of_this_thread().back();
  setenv("LOCKSTEP_WORKER_CPUS", std::to_string(cpu).c_str(), 1);
  std::mutex mutex;
  std::set<std::vector<int>> masks;
  const WatchedReader reader(*reader_, [&](std::size_t) {
    const std::lock_guard lock(mutex);
    masks.insert(cpus_of_this_thread());
  });
  Loader loader(reader, alone(), 0, nullptr, {.workers = 2});
  unsetenv("LOCKSTEP_WORKER_CPUS");
  for (const Batch& batch : loader) EXPECT_GE(batch.step, 0);
  EXPECT_EQ(masks, std::set<std::vector<int>>{{cpu}});
}

TEST_F(LoaderTest, WorkersOfATaskWithoutWorkerCpusRunOnAllOfItsCpus) {
  const std::vector<int> all = cpus_of_this_thread();
  setenv("LOCKSTEP_CPUS", format_cpu_list(all).c_str(), 1);
  bind_this_thread({all.front()});  // as OpenMP does
  std::mutex mutex;
  std::set<std::vector<int>> masks;
  const WatchedReader reader(*reader_, [&](std::size_t) {
    const std::lock_guard lock(mutex);
    masks.insert(cpus_of_this_thread());
  });
  {
    Loader loader(reader, alone(), 0, nullptr, {});
    for (const Batch& batch : loader) EXPECT_GE(batch.step, 0);
  }
  bind_this_thread(all);
  unsetenv("LOCKSTEP_CPUS");
  EXPECT_EQ(masks, std::set<std::vector<int>>{all});
}

TEST_F(LoaderTest, RefusesWhatItCannotDo) {
  EXPECT_THAT([&] { Loader(*reader_, options(59), world()); },
              ThrowsMessage<Error>(AllOf(HasSubstr("'s0"), HasSubstr("60 tokens"), HasSubstr("cap of 59"))));
  PlanOptions padded = alone();
  padded.padded = true;
  EXPECT_THROW(Loader(*reader_, padded, 0, nullptr), UsageError);
  EXPECT_THROW(Loader(*reader_, alone(), 1, nullptr), UsageError);
  PlanOptions endless = alone();
  endless.cap = std::uint64_t{1} << 31U;
  EXPECT_THROW(Loader(*reader_, endless, 0, nullptr), UsageError);
  EXPECT_THROW(Loader(*reader_, alone(), 0, nullptr, {.batches_ahead = 0}), UsageError);
  EXPECT_THROW(Loader(*reader_, alone(), 0, nullptr, {.workers = -1}), UsageError);
  const auto no_tokens = make<std::uint16_t>(0);
  EXPECT_THAT([&] { Loader(*no_tokens, alone(), 0, nullptr); }, ThrowsMessage<Error>(HasSubstr("no tokens")));
}

}  // namespace
}  // namespace lockstep::data
