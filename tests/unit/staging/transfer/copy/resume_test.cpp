// Copies that were killed and are continued, and how data is cut into chunks.

#include <unistd.h>

#include <atomic>

#include "common/file_system.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;

constexpr int kEndedEarly = 99;

class TransferResume : public staging_test::StagingTest {
 protected:
  PutOptions options(FileSystem* system = nullptr) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.file_system = system;
    options.sizes.chunk_bytes = kChunk;
    options.sizes.mark_bytes = 4 * kChunk;
    options.threads = 1;
    options.source_pause = std::chrono::milliseconds(1);
    return options;
  }
  /// Puts the source in a process that ends when this many marks have been written to the journal.
  void kill_after(const fs::path& source, int marks) const {
    ASSERT_EQ(in_child([&] {
                std::atomic<int> left = marks;
                HookedFileSystem system([&](const FileCall& call) {
                  const ssize_t result = real_call(call);
                  const bool mark =
                      call.kind == FileCall::Kind::fsync && fs::path(call.path).filename() == "journal";
                  if (mark && --left == 0) ::_exit(kEndedEarly);
                  return result;
                });
                put({source.string()}, options(&system));
              }),
              kEndedEarly);
  }
  fs::path incoming() const {
    for (const std::string& name : FileSystem::real().list(folder_ / "cache/objects")) {
      if (name.starts_with(".incoming-")) return folder_ / "cache/objects" / name;
    }
    return {};
  }
};

TEST_F(TransferResume, KilledCopyContinuesWhereItWasSynced) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_LE(result.from_source + result.resumed, result.bytes + fs::file_size(pack / "index.lockstep"));
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, PlainFoldersAreContinuedToo) {
  for (int i = 0; i < 40; ++i)
    write(fmt::format("d/{}/x", i), std::string(10'000, static_cast<char>('a' + i % 26)));
  kill_after(folder_ / "d", 3);
  staging_test::flip_byte(incoming() / "files/0/x", 100);  // no index tells that it is wrong
  const PutResult result = put({(folder_ / "d").string()}, options()).at(0);
  EXPECT_GE(result.resumed, 8 * kChunk);
  EXPECT_EQ(result.from_source + result.resumed, result.bytes);
  EXPECT_EQ(content_of(result.path), content_of(folder_ / "d"));
}

TEST_F(TransferResume, FlippedBitInAnEarlierCopyIsFoundAndOnlyThatChunkIsCopiedAgain) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  ASSERT_FALSE(incoming().empty());
  staging_test::flip_byte(incoming() / "files/shard-000000.tar", 100);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 14 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, TornOrForeignJournalIsIgnored) {
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

TEST_F(TransferResume, ChangedSourceIsCopiedAgain) {
  const fs::path pack = make_large_pack("p", 200);
  kill_after(pack, 5);
  const fs::path index = pack / "index.lockstep";
  fs::last_write_time(index, fs::last_write_time(index) + std::chrono::seconds(1));
  EXPECT_EQ(put({pack.string()}, options()).at(0).resumed, 0U);
}

TEST_F(TransferResume, ShardThatWasRepairedAtTheSourceMeanwhileIsReadAgain) {
  const fs::path pack = make_large_pack("p", 200);
  staging_test::flip_byte(pack / "shard-000000.tar", 100);
  kill_after(pack, 5);
  staging_test::flip_byte(pack / "shard-000000.tar", 100);
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, ChunksAreKeptIfTheSourceFails) {
  const fs::path pack = make_large_pack("p", 200);
  std::atomic<int> left = 25;
  HookedFileSystem fails([&](const FileCall& call) {
    const bool of_source =
        call.kind == FileCall::Kind::read && std::string(call.path).starts_with(pack.string() + "/");
    return of_source && --left < 0 ? failed_call(EIO) : real_call(call);
  });
  EXPECT_THAT([&] { put({pack.string()}, options(&fails)); }, staging_test::ThrowsErrorWith("Input/output"));
  const PutResult result = put({pack.string()}, options()).at(0);
  EXPECT_GE(result.resumed, 15 * kChunk);
  EXPECT_EQ(content_of(result.path), content_of(pack));
}

TEST_F(TransferResume, ChunksOfAChangingSourceAreDiscarded) {
  write("d/large", std::string(30 * kChunk, 'a'));
  EXPECT_THAT(
      [&] {
        PutOptions changing = options();
        changing.on.progress = [&](const std::string&, const PutProgress& now) {
          if (now.done == 20 * kChunk) write("d/large", std::string(30 * kChunk, 'b'));
        };
        put({(folder_ / "d").string()}, changing);
      },
      staging_test::ThrowsErrorWith("changed"));
  EXPECT_TRUE(incoming().empty());
}

TEST(ChunkPlan, CutsLargeFilesAtMultiplesAndPutsSmallOnesTogether) {
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

}  // namespace
}  // namespace lockstep::transfer
