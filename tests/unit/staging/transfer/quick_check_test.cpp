// The check of a warm hit without an index: of large files it reads chunks whose digests the copy has
// recorded.

#include <atomic>
#include <random>

#include "staging/transfer/put.h"
#include "staging/transfer/source_lookup.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::failed_call;
using staging_test::flip_byte;
using staging_test::HookedFileSystem;
using staging_test::real_call;
using testing::HasSubstr;

constexpr std::uint32_t kLargeChunk = 1U << 16U;
constexpr std::uint64_t kLarge = (std::uint64_t{1} << 20U) + 3 * kLargeChunk + 1234;
constexpr int kMaxTries = 5000;

class StageQuickCheck : public staging_test::StagingTest {
 protected:
  StageQuickCheck() {
    std::string bytes(kLarge, '\0');
    std::minstd_rand random(1);
    for (char& byte : bytes) byte = static_cast<char>(random());
    write("d/a", bytes);
    write("d/b", "small");
    write("d/sub/c", bytes.substr(100));
  }
  PutResult put_one(Verify verify = Verify::quick, FileSystem* system = nullptr) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = verify;
    options.sizes.chunk_bytes = kLargeChunk;
    options.file_system = system;
    options.source_pause = std::chrono::milliseconds(1);
    return put({(folder_ / "d").string()}, options).at(0);
  }
  static fs::path journal(const PutResult& result) { return result.path.parent_path() / "journal"; }
  static bool finds(const PutResult& result) {
    try {
      check_copy(result.path, Verify::quick, 1);
      return false;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("is damaged"), HasSubstr("between bytes")));
      return true;
    }
  }
  static bool finds_in_the_end(const PutResult& result) {
    for (int tries = 0; tries < kMaxTries; ++tries) {
      if (finds(result)) return true;
    }
    return false;
  }
};

TEST_F(StageQuickCheck, AFlippedBitIsFoundWhenItsChunkIsChosen) {
  const PutResult copy = put_one();
  EXPECT_FALSE(finds_in_the_end(copy)) << "of a good copy";
  for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{kLargeChunk}, kLarge / 2, kLarge - 1}) {
    SCOPED_TRACE(at);
    flip_byte(copy.path / "a", at);
    EXPECT_TRUE(finds_in_the_end(copy));
    EXPECT_THAT([&] { check_copy(copy.path, Verify::full, 1); },
                staging_test::ThrowsErrorWith("a is damaged: xxh3"));
    flip_byte(copy.path / "a", at);
  }
}

TEST_F(StageQuickCheck, IfEveryChunkIsDamagedTheFirstWarmHitFindsItAndCopiesAgain) {
  const PutResult copy = put_one();
  for (const char* name : {"a", "sub/c"}) {
    for (std::uint64_t at = 17; at < kLarge - 100; at += kLargeChunk / 2) flip_byte(copy.path / name, at);
  }
  const PutResult again = put_one();
  EXPECT_FALSE(again.hit);
  EXPECT_THAT(again.note, HasSubstr("the cached copy was damaged and is copied again"));
  EXPECT_EQ(staging_test::content_of(again.path), staging_test::content_of(folder_ / "d"));
  EXPECT_TRUE(put_one(Verify::full).hit);
}

TEST_F(StageQuickCheck, ABitThatFlippedOnItsWayToTheDiskIsFoundToo) {
  HookedFileSystem disk([](const FileCall& call) {
    const ssize_t result = real_call(call);
    if (call.kind == FileCall::Kind::write && result == kLargeChunk && call.offset == 2 * kLargeChunk)
      flip_byte(call.path, 2 * kLargeChunk + 5);
    return result;
  });
  const PutResult copy = put_one(Verify::quick, &disk);
  EXPECT_TRUE(finds_in_the_end(copy));
  const PutResult again = put_one(Verify::full);
  EXPECT_FALSE(again.hit);
  EXPECT_EQ(staging_test::content_of(again.path), staging_test::content_of(folder_ / "d"));
}

// Copies of earlier versions have no digests, and a disk error may hit the digests as well as the data.
TEST_F(StageQuickCheck, WithoutOrWithADamagedListOfDigestsAGoodCopyIsAccepted) {
  const PutResult copy = put_one();
  const std::string whole = staging_test::read(journal(copy));
  constexpr std::uint64_t kHeader = 32;
  for (std::uint64_t at = 0; at < whole.size(); at += at < kHeader ? 1 : 19) {
    flip_byte(journal(copy), at);
    for (int tries = 0; tries < 10; ++tries) EXPECT_FALSE(finds(copy)) << at;
    flip_byte(journal(copy), at);
  }
  fs::resize_file(journal(copy), whole.size() / 2);
  EXPECT_FALSE(finds_in_the_end(copy));
  fs::remove(journal(copy));
  EXPECT_TRUE(put_one().hit);
  flip_byte(copy.path / "a", kLarge / 2);
  EXPECT_TRUE(put_one().hit) << "the digest of this chunk is not known";
  EXPECT_FALSE(put_one(Verify::full).hit);
  EXPECT_TRUE(fs::exists(journal(copy)));
}

// For other nodes: a holder sends them with its chunks.
TEST_F(StageQuickCheck, APackKeepsItsListOfDigestsToo) {
  const fs::path pack = make_large_pack("p", 100);
  PutOptions options;
  options.cache_dir = folder_ / "cache";
  const PutResult copy = put({pack.string()}, options).at(0);
  EXPECT_TRUE(fs::exists(journal(copy)));
}

TEST_F(StageQuickCheck, TheDigestOfALaterTryReplacesThatOfAKilledOne) {
  const std::string source = (folder_ / "d/").string();
  std::atomic<int> reads = 0;  // several threads read
  HookedFileSystem stops([&](const FileCall& call) {
    // Only the source: an error of the cache's disk would discard the copy.
    const bool reads_chunk = call.kind == FileCall::Kind::read && call.size == kLargeChunk;
    const bool of_source = std::string(call.path).starts_with(source);
    return reads_chunk && of_source && ++reads > 12 ? failed_call(EIO) : real_call(call);
  });
  EXPECT_THROW(put_one(Verify::quick, &stops), Error);
  for (const std::string& name : FileSystem::real().list(folder_ / "cache/objects"))
    flip_byte(folder_ / "cache/objects" / name / "files/a", 3 * kLargeChunk);
  const PutResult copy = put_one();
  EXPECT_GT(copy.resumed, 0U);
  EXPECT_TRUE(put_one(Verify::full).hit);
  EXPECT_FALSE(finds_in_the_end(copy)) << "it compares the copied chunk with the digest of the first try";
}

}  // namespace
}  // namespace lockstep::transfer
