// Copies that were killed and are continued, and how data is cut into chunks.

#include <unistd.h>

#include <atomic>

#include "common/file_system.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/chunk_work.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::in_child;
using testing::ElementsAre;
using testing::StartsWith;

constexpr std::uint32_t kChunk = 16384;
constexpr int kKilled = 99;

/// Dies when so many bytes of shards have been written down as synced.
class DiesAfterMark : public FileSystem {
 public:
  explicit DiesAfterMark(int marks) : marks_(marks) {}

 protected:
  int call_fsync(int fd) override {
    const int result = FileSystem::call_fsync(fd);
    const std::string name = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd)).filename().string();
    if (name == "journal" && --marks_ == 0) ::_exit(kKilled);
    return result;
  }

 private:
  std::atomic<int> marks_;
};

class TransferResume : public staging_test::StagingTest {
 protected:
  PutOptions options(FileSystem* system = nullptr) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.file_system = system;
    options.chunk_bytes = kChunk;
    options.mark_bytes = 4 * kChunk;
    options.threads = 1;
    return options;
  }
  void kill_after(const fs::path& source, int marks) const {
    ASSERT_EQ(in_child([&] {
                DiesAfterMark system(marks);
                put({source.string()}, options(&system));
              }),
              kKilled);
  }
  fs::path incoming() const {
    for (const std::string& name : FileSystem::real().list(folder_ / "cache/objects")) {
      if (name.starts_with(".incoming-")) return folder_ / "cache/objects" / name;
    }
    return {};
  }
};

TEST_F(TransferResume, AKilledCopyGoesOnWhereItWasSynced) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_LE(result.from_source + result.resumed, result.bytes + fs::file_size(pack / "index.lockstep"));
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, PlainFoldersGoOnToo) {
  for (int i = 0; i < 40; ++i)
    write(fmt::format("d/{}/x", i), std::string(10'000, static_cast<char>('a' + i % 26)));
  kill_after(folder_ / "d", 3);
  const PutResult result = put({(folder_ / "d").string()}, options()).at(0);
  EXPECT_GE(result.resumed, 8 * kChunk);
  EXPECT_EQ(result.from_source + result.resumed, result.bytes);
  EXPECT_EQ(content_of(result.path), content_of(folder_ / "d"));
}

TEST_F(TransferResume, AFlippedBitInWhatWasLeftIsFoundAndOnlyThatIsCopiedAgain) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  ASSERT_FALSE(incoming().empty());
  staging_test::flip_byte(incoming() / "files/shard-000000.tar", 100);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 14 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, ATornOrForeignJournalIsNoHarm) {
  const fs::path pack = make_large_pack("p", 200);
  for (const std::uint64_t cut : {std::uint64_t{10}, std::uint64_t{32}, std::uint64_t{32 + 3 * 32 + 7}}) {
    FileSystem::real().remove_all(folder_ / "cache");
    kill_after(pack, 5);
    fs::resize_file(incoming() / "journal", cut);
    const PutResult result = put({pack.string()}, options()).at(0);
    EXPECT_LE(result.resumed, 3 * kChunk);
    EXPECT_EQ(content_of(result.path), content_of(pack)) << cut;
  }
  FileSystem::real().remove_all(folder_ / "cache");
  kill_after(pack, 5);
  staging_test::flip_byte(incoming() / "journal", 20);  // the plan's digest
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_EQ(result.resumed, 0U);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, AChangedSourceIsCopiedAnew) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  const fs::path index = pack / "index.lockstep";
  fs::last_write_time(index, fs::last_write_time(index) + std::chrono::seconds(1));
  EXPECT_EQ(put({pack.string()}, options()).at(0).resumed, 0U);
}

TEST_F(TransferResume, AShardThatWasRepairedAtTheSourceMeanwhileIsReadAgain) {
  const fs::path pack = make_large_pack("p", 200);
  staging_test::flip_byte(pack / "shard-000000.tar", 100);
  kill_after(pack, 5);
  staging_test::flip_byte(pack / "shard-000000.tar", 100);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

/// A source that cannot be read any more after some reads.
class SourceFails : public FileSystem {
 public:
  SourceFails(fs::path folder, int reads) : folder_(std::move(folder)), reads_(reads) {}

 protected:
  ssize_t call_pread(int fd, void* into, std::size_t size, off_t offset) override {
    const std::string file = fs::read_symlink(fmt::format("/proc/self/fd/{}", fd)).string();
    if (file.starts_with(folder_.string() + "/") && --reads_ < 0) {
      errno = EIO;
      return -1;
    }
    return FileSystem::call_pread(fd, into, size, offset);
  }

 private:
  fs::path folder_;
  std::atomic<int> reads_;
};

TEST_F(TransferResume, WhatWasCopiedStaysWhereTheSourceFails) {
  const fs::path pack = make_large_pack("p", 200);
  SourceFails fails(pack, 25);
  EXPECT_THAT([&] { put({pack.string()}, options(&fails)); }, staging_test::ThrowsErrorWith("Input/output"));
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, WhatWasCopiedOfAChangingSourceGoes) {
  write("d/large", std::string(30 * kChunk, 'a'));
  EXPECT_THAT(
      [&] {
        PutOptions changing = options();
        changing.progress = [&](const std::string&, std::uint64_t done, std::uint64_t) {
          if (done == 20 * kChunk) write("d/large", std::string(30 * kChunk, 'b'));
        };
        put({(folder_ / "d").string()}, changing);
      },
      staging_test::ThrowsErrorWith("changed while it was copied"));
  EXPECT_TRUE(incoming().empty());
}

TEST(ChunkPlan, CutsLargeFilesAtMultiplesAndLetsSmallOnesShare) {
  const ChunkPlan plan({10, 250, 0, 30, 100}, 100);
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> next(5);
  for (std::size_t c = 0; c < plan.size(); ++c) {
    EXPECT_LE(plan.bytes(c), 100U);
    for (const Extent& extent : plan.extents(c)) {
      EXPECT_EQ(extent.offset, next[extent.file]);
      EXPECT_EQ(extent.offset % 100, 0U);
      next[extent.file] += extent.bytes;
      bytes += extent.bytes;
    }
  }
  EXPECT_EQ(bytes, 390U);
  EXPECT_THAT(next, ElementsAre(10, 250, 0, 30, 100));
  EXPECT_EQ(plan.size(), 5U);  // 10 | 100 | 100 | 50 + 0 + 30 | 100
  EXPECT_EQ(plan.first_chunk(1), 1U);
  EXPECT_EQ(plan.last_chunk(1), 3U);
  EXPECT_EQ(plan.first_chunk(3), 3U);
}

TEST(ChunkPlan, ManySmallFilesAreManyChunks) {
  const ChunkPlan plan(std::vector<std::uint64_t>(1000, 1), 1 << 20);
  EXPECT_EQ(plan.size(), (1000 + ChunkPlan::kMaxExtents - 1) / ChunkPlan::kMaxExtents);
  EXPECT_EQ(ChunkPlan({}, 100).size(), 0U);
  EXPECT_THROW(ChunkPlan({1}, 0), Error);
}

TEST(ChunkWork, WhatADeadMemberWasToBringIsReadHere) {
  ChunkWork work(
      6, 2, 0, [](std::size_t chunk) { return chunk % 2; }, [](std::size_t chunk) { return chunk != 2; });
  EXPECT_EQ(work.take(1), 1U);
  EXPECT_EQ(work.take_own(), 0U);
  EXPECT_EQ(work.slowest(), 1U);
  work.give_up(1);
  work.put_back(1, 0);
  for (const std::size_t chunk : {1U, 3U, 4U, 5U}) EXPECT_EQ(work.take_own(), chunk);
  EXPECT_FALSE(work.slowest());
  for (int i = 0; i < 5; ++i) work.done();
  EXPECT_TRUE(work.finished());
  EXPECT_FALSE(work.take_own());
}

TEST(ChunkWork, WhatADeadMemberWasToBringIsReadByOneOfTheOthersWhoeverNoticesFirst) {
  const auto all = [](std::size_t) { return true; };
  const auto in_turn = [](std::size_t chunk) { return chunk % 3; };
  ChunkWork first(6, 3, 0, in_turn, all), second(6, 3, 1, in_turn, all);
  EXPECT_EQ(second.take(2), 2U);  // asked for, and not answered
  for (ChunkWork* work : {&second, &first}) work->give_up(2);
  second.put_back(2, 2);
  for (const std::size_t chunk : {0U, 2U, 3U, 5U}) EXPECT_EQ(first.take_own(), chunk);
  for (const std::size_t chunk : {0U, 2U, 3U, 5U}) EXPECT_EQ(second.take(0), chunk);
  for (const std::size_t chunk : {1U, 4U}) EXPECT_EQ(second.take_own(), chunk);
  second.moved(3, 2);  // by the one who has not noticed: nobody else is left who would bring it
  EXPECT_EQ(second.take_own(), 3U);
}

TEST(ChunkWork, WhoIsAskedForAChunkThatNobodyReadsHereReadsItWhomeverItWaitsFor) {
  const auto all = [](std::size_t) { return true; };
  const auto in_turn = [](std::size_t chunk) { return chunk % 3; };
  ChunkWork work(9, 3, 2, in_turn, all);
  EXPECT_EQ(work.take(0), 0U);  // asked for, and not answered
  for (const std::size_t chunk : {0U, 0U, 3U, 2U}) EXPECT_FALSE(work.asked_for(chunk));
  for (const std::size_t chunk : {0U, 2U, 3U, 5U}) EXPECT_EQ(work.take_own(), chunk);
  EXPECT_FALSE(work.arrived(0)) << "it is being read";
  EXPECT_EQ(work.take(0), 6U) << "others are not";
  EXPECT_TRUE(work.arrived(6));
}

TEST(ChunkWork, WhatComesBeforeItIsReadHereNeedNotBeRead) {
  const auto all = [](std::size_t) { return true; };
  ChunkWork work(
      4, 2, 0, [](std::size_t chunk) { return chunk % 2; }, all);
  EXPECT_EQ(work.take(1), 1U);
  EXPECT_FALSE(work.asked_for(1));
  EXPECT_TRUE(work.arrived(1));
  for (const std::size_t chunk : {0U, 2U}) EXPECT_EQ(work.take_own(), chunk);
  EXPECT_FALSE(work.take(0)) << "not chunk 1 again";
}

// Whatever the answer is to a question that need not have been asked.
TEST(ChunkWork, AChunkThatIsReadHereByNowIsNotAskedForAgain) {
  const auto all = [](std::size_t) { return true; };
  ChunkWork work(
      6, 2, 0, [](std::size_t chunk) { return chunk % 2; }, all);
  for (const std::size_t chunk : {1U, 3U}) {
    EXPECT_EQ(work.take(1), chunk);
    EXPECT_FALSE(work.asked_for(chunk));
  }
  work.moved(1, 1);
  work.put_back(3, 1);
  EXPECT_EQ(work.take(1), 5U);
  EXPECT_FALSE(work.take(1));
  for (const std::size_t chunk : {0U, 1U, 2U, 3U, 4U}) EXPECT_EQ(work.take_own(), chunk);
}

TEST(ChunkWork, WhatWasCededToOneThatIsGivenUpIsReadHere) {
  const auto all = [](std::size_t) { return true; };
  const auto in_turn = [](std::size_t chunk) { return chunk % 4; };
  ChunkWork work(8, 4, 3, in_turn, all);
  ASSERT_THAT(work.cede(1, 2), ElementsAre(7));
  for (const std::size_t member : {0U, 2U}) work.give_up(member);
  for (const std::size_t chunk : {2U, 3U, 6U, 7U}) EXPECT_EQ(work.take_own(), chunk);
  EXPECT_FALSE(work.asked_for(7));
}

TEST(ChunkWork, CedesFromTheEndAndKeepsHalf) {
  ChunkWork work(
      8, 3, 1, [](std::size_t) { return 1; }, [](std::size_t) { return true; });
  EXPECT_THAT(work.cede(3, 2), ElementsAre(7, 6, 5));
  EXPECT_EQ(work.asked_for(6), 2U);
  EXPECT_FALSE(work.asked_for(4));
  EXPECT_EQ(work.take(2), 5U);
  EXPECT_THAT(work.cede(10, 0), ElementsAre(4, 3));
  EXPECT_EQ(work.take_own(), 0U);
}

// Else two could each believe that the other has it, where one of the answers was lost.
TEST(ChunkWork, WhatWasCededHereIsNotCededOn) {
  const auto all = [](std::size_t) { return true; };
  ChunkWork work(
      8, 2, 1, [](std::size_t chunk) { return chunk < 4 ? 0 : 1; }, all);
  for (const std::size_t chunk : {2U, 3U}) work.claim(chunk);
  EXPECT_FALSE(work.asked_for(2));
  EXPECT_THAT(work.cede(3, 0), ElementsAre(7, 6, 5));
  EXPECT_THAT(work.cede(3, 0), ElementsAre(4));
  for (const std::size_t chunk : {2U, 3U}) EXPECT_EQ(work.take_own(), chunk);
}

TEST(ChunkWork, AChunkThatIsSaidToHaveMovedHereIsReadHereOnce) {
  const auto all = [](std::size_t) { return true; };
  ChunkWork work(
      4, 2, 1, [](std::size_t) { return 0; }, all);
  EXPECT_EQ(work.take(0), 0U);
  EXPECT_EQ(work.take(0), 1U);
  work.claim(0);  // both answers come, in this order or
  work.moved(0, 1);
  work.moved(1, 1);  // in that
  work.claim(1);
  for (const std::size_t chunk : {0U, 1U}) EXPECT_EQ(work.take_own(), chunk);
  EXPECT_FALSE(work.take(1));
}

}  // namespace
}  // namespace lockstep::transfer
