// Several packs in one loader: mixed by weights, each with its own epochs, resumed at any step.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <map>
#include <set>

#include "common/error.h"
#include "runtime/data/loader.h"
#include "runtime/data/loader_options.h"
#include "staging/pack/formats/megatron_writer.h"
#include "tests/integration/data/loader_fixture.h"

namespace lockstep::data {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The fixture's pack, and a second one of the same samples.
class MixedLoader : public LoaderTest {
 protected:
  MixedLoader() {
    std::filesystem::copy(folder_ / "pack", folder_ / "again", std::filesystem::copy_options::recursive);
    second_ = pack::open(folder_ / "again");
    packs_ = std::make_unique<JoinedPacks>(
        std::vector<NamedPack>{{"first", reader_.get()}, {"second", second_.get()}});
  }

  LoaderOptions mixed(std::uint64_t steps) const {
    LoaderOptions options{.workers = 2};
    options.mixture = Mixture{.parts = packs_->parts_of_mixture(), .weights = {3, 2}, .steps = steps};
    return options;
  }

  std::unique_ptr<pack::Reader> second_;
  std::unique_ptr<JoinedPacks> packs_;
};

TEST_F(MixedLoader, GivesTheMixturesStepsWithThePackedTokens) {
  Loader loader(*packs_, options(), world(), mixed(40));
  std::int64_t steps = 0;
  std::vector<double> tokens(2, 0.0);
  for (const Batch& batch : loader) {
    EXPECT_EQ(batch.step, steps);
    EXPECT_FALSE(batch.empty);
    expect_packed_samples(batch);
    steps += batch.last_of_step ? 1 : 0;
    for (std::int64_t i = 0; i < batch.sample_ids.size(0); ++i) {
      const auto id = static_cast<SampleId>(batch.sample_ids[i].item<std::int64_t>());
      const auto length =
          batch.cu_seqlens[i + 1].item<std::int32_t>() - batch.cu_seqlens[i].item<std::int32_t>();
      tokens[sample_of(id) < kSamples ? 0 : 1] += length;
    }
  }
  EXPECT_EQ(steps, 40);
  world().communicator().all_reduce({tokens.data(), 2, comm::DataType::f64}, "tokens")->wait();
  EXPECT_NEAR(tokens[0] / (tokens[0] + tokens[1]), 0.6, 0.03);
  const auto progress = loader.mixture_progress();
  EXPECT_EQ(progress[1].name, "second");
  EXPECT_GT(progress[0].epoch + progress[0].samples, 0U);
  EXPECT_THROW(loader.set_epoch(1), UsageError);
}

TEST_F(MixedLoader, ResumedOnOtherRanksNoSampleIsSeenTwiceInAnEpochOfItsDataSet) {
  const LoaderOptions options = mixed(14);
  for (const std::uint64_t stop : {1U, 4U, 5U, 6U, 9U}) {
    std::string state;
    auto ids = take_on_ranks(*packs_, LoaderTest::options(), 2, stop, state, options);
    for (const int ranks : {3, 1}) {
      const auto more = take_on_ranks(*packs_, LoaderTest::options(), ranks, 2, state, options);
      ids.insert(ids.end(), more.begin(), more.end());
    }
    EXPECT_GT(ids.size(), 30U);
    EXPECT_EQ(std::set<std::int64_t>(ids.begin(), ids.end()).size(), ids.size()) << "a sample was seen twice";
  }
}

TEST_F(MixedLoader, SampleSeedsDifferFromEpochToEpochOfADataSet) {
  std::map<SampleId, std::uint64_t> seeds;
  std::mutex mutex;
  LoaderOptions options = mixed(100);
  options.transform = [&](Sample& sample) {
    const std::lock_guard lock(mutex);
    seeds[sample.id] = sample.seed;
  };
  Loader loader(*packs_, alone(), 0, nullptr, options);
  take(loader, kAll);
  std::map<std::uint64_t, int> different;
  SampleId last_epoch = 0;
  for (const auto& [id, seed] : seeds) {
    ++different[seed];
    last_epoch = std::max(last_epoch, epoch_of(id));
  }
  EXPECT_GT(last_epoch, 1U);
  EXPECT_EQ(different.size(), seeds.size());
}

TEST_F(MixedLoader, PacksOfDifferentTokenTypesAreNotJoined) {
  std::filesystem::rename(folder_ / "again", ::testing::TempDir() + "again_" + std::to_string(getpid()));
  const std::filesystem::path kept = ::testing::TempDir() + "again_" + std::to_string(getpid());
  const auto narrow = pack::open(kept);
  const auto wide = make<std::uint32_t>(4);
  EXPECT_THAT(
      [&] {
        JoinedPacks({{"narrow", narrow.get()}, {"wide", wide.get()}});
      },
      ThrowsMessage<Error>(HasSubstr("'wide' holds u32 where 'narrow' holds u16")));
  std::filesystem::remove_all(kept);
}

TEST_F(MixedLoader, JoinedPacksFindTheirSamples) {
  EXPECT_EQ(packs_->size(), 2 * kSamples);
  EXPECT_EQ(packs_->key(kSamples + 3), "s003");
  EXPECT_EQ(packs_->tokens(kSamples + 5), static_cast<std::uint64_t>(length_of(5)));
  EXPECT_EQ(packs_->fingerprint(), reader_->fingerprint() + "+" + second_->fingerprint());
  EXPECT_THROW(packs_->bytes(2 * kSamples), Error);
  Loader loader(*packs_, alone(), 0, nullptr, {});
  EXPECT_EQ(take(loader, kAll).size(), 2 * kSamples);
}

TEST_F(LoaderTest, MegatronsPacksAreReadWithAnyTokenType) {
  for (const auto type :
       {pack::TokenType::u16, pack::TokenType::i16, pack::TokenType::i32, pack::TokenType::i64}) {
    SCOPED_TRACE(pack::name_of(type));
    const std::filesystem::path folder = folder_ / ("megatron_" + std::string(pack::name_of(type)));
    std::filesystem::create_directories(folder);
    pack::MegatronWriter writer(folder / "text", type);
    const auto width = static_cast<std::size_t>(pack::bytes_of(type));
    for (std::size_t i = 0; i < kSamples; ++i) {
      std::vector<std::byte> bytes;
      for (std::int64_t p = 0; p < length_of(i); ++p) {
        const std::int64_t token = token_of(i, p);  // little-endian, as the machine
        const auto* const first = reinterpret_cast<const std::byte*>(&token);
        bytes.insert(bytes.end(), first, first + width);
      }
      writer.add_sequence(bytes);
      writer.end_document();
    }
    writer.finish();
    const auto reader = pack::open(folder);
    ASSERT_EQ(reader->size(), kSamples);
    for (const bool mapped : {true, false}) {
      Loader loader(*reader, alone(), 0, nullptr, {.mapped = mapped, .next_epoch_ahead = false});
      std::int64_t samples = 0;
      for (const Batch& batch : loader) {
        expect_packed_samples(batch);
        samples += batch.sample_ids.size(0);
      }
      EXPECT_EQ(samples, static_cast<std::int64_t>(kSamples));
    }
  }
}

// Truncates a file of a pack that is in use.
class Truncated : public LoaderTest {
 protected:
  std::filesystem::path shard() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_ / "pack")) {
      if (entry.path().extension() == ".tar") return entry.path();
    }
    return {};
  }
};

TEST_F(Truncated, AWritableShardIsReadAndItsTruncationIsAnError) {
  ASSERT_FALSE(shard().empty());
  ::chmod(shard().c_str(), 0644);
  EXPECT_FALSE(reader_->safe_to_map());
  Loader loader(*reader_, alone(), 0, nullptr, {.workers = 1});
  std::filesystem::resize_file(shard(), 1024);
  EXPECT_THAT([&] { take(loader, kAll); },
              ThrowsMessage<Error>(::testing::AllOf(HasSubstr("sample 's"), HasSubstr("rank 0, step "))));
}

// One bit changes in a shard that is in use, mapped or not.
TEST_F(Truncated, AChangedSampleEndsTheLoopByItsShardKeyAndOffset) {
  const pack::Part part = reader_->parts(42)[0];
  for (const bool mapped : {true, false}) {
    Loader loader(*reader_, alone(), 0, nullptr, {.workers = 1, .mapped = mapped, .next_epoch_ahead = false});
    take(loader, kAll);
    const auto flip = [&] {
      std::fstream file(shard(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(static_cast<std::streamoff>(part.offset));
      const auto byte = static_cast<char>(file.get() ^ 1);
      file.seekp(static_cast<std::streamoff>(part.offset));
      file.put(byte);
    };
    flip();
    EXPECT_THAT([&] { take(loader, kAll); },
                ThrowsMessage<Error>(::testing::AllOf(
                    HasSubstr("does not match its index"), HasSubstr(shard().filename().string()),
                    HasSubstr("sample 42 (s042)"), HasSubstr(fmt::format("offset {}", part.offset)))))
        << mapped;
    flip();
    EXPECT_NO_THROW(take(loader, kAll));
  }
}

TEST_F(Truncated, OnlyReadOnlyShardsAreMappedByDefault) {
  ::chmod(shard().c_str(), 0444);
  EXPECT_TRUE(reader_->safe_to_map());
  for (const mode_t mode : {0644U, 0464U, 0446U}) {
    ::chmod(shard().c_str(), mode);
    EXPECT_FALSE(reader_->safe_to_map()) << mode;
  }
  // What the loader does then, the reader sees: view() or read().
  class Counting : public WatchedReader {
   public:
    explicit Counting(const pack::Reader& reader) : WatchedReader(reader, [](std::size_t) {}) {}
    bool can_view() const override { return true; }
    void read(std::size_t i, std::span<std::byte> into) const override {
      ++reads;
      WatchedReader::read(i, into);
    }
    mutable std::atomic<int> reads = 0;
  };
  const Counting counting(*reader_);
  {
    Loader loader(counting, alone(), 0, nullptr, {.next_epoch_ahead = false});
    take(loader, kAll);
    EXPECT_EQ(counting.reads, static_cast<int>(kSamples));
  }
  ::chmod(shard().c_str(), 0444);
  Loader loader(counting, alone(), 0, nullptr, {.next_epoch_ahead = false});
  take(loader, kAll);
  EXPECT_EQ(counting.reads, static_cast<int>(kSamples));
}

}  // namespace
}  // namespace lockstep::data
