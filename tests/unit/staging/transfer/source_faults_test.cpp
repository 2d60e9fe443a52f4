// Sources that change, shrink or disappear at any read while they are copied, reads that return wrong bytes,
// and indexes with a flipped bit: the copy is complete, or the call fails and names the file; the next call
// works.

#include <unistd.h>

#include <map>
#include <set>
#include <span>

#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kMaxReads = 200;

class StageSource : public staging_test::StagingTest {
 protected:
  StageSource() {
    make_large_pack("pack", 40);
    write("plain/large", std::string(5 * kChunk, 'l'));
    for (const char* name : {"a", "b", "sub/c"}) write(fs::path("plain") / name, std::string(3000, name[0]));
    fs::create_directory(folder_ / "kept");
    // Sets an old time, so that every change of the file changes its time.
    for (const char* source : {"pack", "plain"}) {
      for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder_ / source))
        fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
      fs::copy(folder_ / source, folder_ / "kept" / source, fs::copy_options::recursive);
    }
  }

  PutOptions options(FileSystem* system = nullptr, Verify verify = Verify::quick) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = verify;
    options.sizes.chunk_bytes = kChunk;
    options.threads = 1;
    options.file_system = system;
    return options;
  }
  PutResult put_one(const fs::path& source, Verify verify = Verify::quick) const {
    return put({source.string()}, options(nullptr, verify)).at(0);
  }

  /// Restores the source, with its own modification time.
  void restore(const char* source) const {
    fs::remove_all(folder_ / source);
    fs::copy(folder_ / "kept" / source, folder_ / source, fs::copy_options::recursive);
    for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder_ / source))
      fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  }

  /// Puts the source once for each of its reads, with `happens` at that read, and then checks the cache.
  /// Returns how many puts were refused, and adds the error messages to `words`.
  int at_every_read(const char* source, const SourceReads::Before& happens, const SourceReads::After& after,
                    std::set<std::string>& words) {
    int refused = 0;
    for (int read = 1; read < kMaxReads; ++read) {
      SCOPED_TRACE(fmt::format("{}, read {}", source, read));
      SourceReads seam(
          folder_ / source,
          [&](const SourceRead& now) {
            if (now.n == read && happens) happens(now);
          },
          [&](const SourceRead& now, std::span<std::byte> bytes) {
            if (now.n == read && after) after(now, bytes);
          });
      try {
        const PutResult result = put({(folder_ / source).string()}, options(&seam)).at(0);
        EXPECT_EQ(content_of(result.path), content_of(folder_ / "kept" / source));
      } catch (const Error& error) {
        ++refused;
        words.insert(error.what());
        EXPECT_THAT(error.what(), HasSubstr((folder_ / source).string()));
        EXPECT_THAT(objects(), IsEmpty());
      }
      restore(source);
      EXPECT_EQ(content_of(put_one(folder_ / source).path), content_of(folder_ / "kept" / source));
      FileSystem::real().remove_all(folder_ / "cache");
      if (HasFailure() || seam.reads() < read) return refused;
    }
    ADD_FAILURE() << "the reads do not end";
    return refused;
  }
};

TEST_F(StageSource, ThatShrinksWhileItIsCopiedIsRefusedAtEveryRead) {
  for (const char* source : {"pack", "plain"}) {
    std::set<std::string> words;
    int reads = 0;
    const int refused = at_every_read(
        source,
        [&](const SourceRead& read) {
          reads = read.n;
          fs::resize_file(read.file, read.offset + (fs::file_size(read.file) - read.offset) / 2);
        },
        {}, words);
    EXPECT_EQ(refused, reads) << source;
    EXPECT_GT(refused, 6) << source;
    EXPECT_THAT(words, testing::Each(testing::AnyOf(HasSubstr("changed"), HasSubstr("again"))));
  }
}

TEST_F(StageSource, ThatDisappearsWhileItIsCopiedIsRefusedOrWholeAtEveryRead) {
  for (const char* source : {"pack", "plain"}) {
    for (const bool all : {true, false}) {
      std::set<std::string> words;
      const int refused = at_every_read(
          source,
          [&](const SourceRead& read) {
            fs::remove(read.file);
            if (all) fs::remove_all(folder_ / source);
          },
          {}, words);
      EXPECT_GT(refused, 3) << source;
      EXPECT_THAT(words, testing::Each(testing::AnyOf(HasSubstr("changed"), HasSubstr("No such file"))));
    }
  }
}

TEST_F(StageSource, ThatIsWrittenToWhileItIsCopiedIsRefusedAtEveryRead) {
  for (const char* source : {"pack", "plain"}) {
    std::set<std::string> words;
    int reads = 0;
    const int refused = at_every_read(
        source,
        [&](const SourceRead& read) {
          reads = read.n;
          std::string other = staging_test::read(read.file);
          for (char& byte : other) byte = static_cast<char>(byte ^ 1);
          write(read.file, other);
        },
        {}, words);
    EXPECT_EQ(refused, reads) << source;
    EXPECT_GT(refused, 6) << source;
  }
}

/// Fails each such call for each file of the source, as often as told.
HookedFileSystem failing_source(const fs::path& folder, int error, int times, FileCall::Kind kind) {
  return HookedFileSystem([=, failed = std::map<std::string, int>()](const FileCall& call) mutable {
    const bool fails = call.kind == kind && std::string(call.path).starts_with(folder.string() + "/");
    return fails && failed[call.path]++ < times ? failed_call(error) : real_call(call);
  });
}

TEST_F(StageSource, ThatCannotBeReachedForAMomentIsTriedAgain) {
  for (const char* source : {"pack", "plain"}) {
    for (const int error : {ESTALE, EIO, ETIMEDOUT}) {
      for (const auto kind : {FileCall::Kind::read, FileCall::Kind::open}) {
        HookedFileSystem fails = failing_source(folder_ / source, error, 5, kind);
        PutOptions with_pauses = options(&fails);
        with_pauses.source_pause = std::chrono::milliseconds(1);
        const PutResult result = put({(folder_ / source).string()}, with_pauses).at(0);
        EXPECT_EQ(content_of(result.path), content_of(folder_ / source));
        FileSystem::real().remove_all(folder_ / "cache");
      }
    }
  }
}

// A handle of NFS that is stale stays so, however often it is read.
TEST_F(StageSource, WithAStaleHandleIsOpenedAgain) {
  std::map<std::string, int> opened;
  HookedFileSystem stale([&](const FileCall& call) {
    const bool of_source = std::string(call.path).find("/plain/") != std::string::npos;
    if (of_source && call.kind == FileCall::Kind::open) ++opened[call.path];
    const bool fails = of_source && call.kind == FileCall::Kind::read && opened[call.path] <= 2;
    return fails ? failed_call(ESTALE) : real_call(call);
  });
  PutOptions with_pauses = options(&stale);
  with_pauses.source_pause = std::chrono::milliseconds(1);
  const PutResult result = put({(folder_ / "plain").string()}, with_pauses).at(0);
  EXPECT_EQ(content_of(result.path), content_of(folder_ / "plain"));
}

TEST_F(StageSource, ThatStaysUnreachableSaysHowOftenItWasTried) {
  HookedFileSystem fails = failing_source(folder_ / "plain", ETIMEDOUT, 1000, FileCall::Kind::read);
  PutOptions with_pauses = options(&fails);
  with_pauses.source_pause = std::chrono::milliseconds(1);
  EXPECT_THAT([&] { put({(folder_ / "plain").string()}, with_pauses); },
              staging_test::ThrowsErrorWith("Connection timed out (tried 6 times in 31.0 ms)"));
}

// Only the digests of shards reveal such a bit: a plain file has none.
TEST_F(StageSource, ABitOfAPackThatFlipsOnTheWayIsReadAgainOrRefusedAtEveryRead) {
  std::set<std::string> words;
  const int refused = at_every_read(
      "pack", {},
      [](const SourceRead&, std::span<std::byte> bytes) { bytes[bytes.size() / 2] ^= std::byte{4}; }, words);
  EXPECT_GE(refused, 1) << "there is no second copy of the index to compare with";
  EXPECT_THAT(words, testing::Each(HasSubstr("index.lockstep")));
}

TEST_F(StageSource, AFlippedBitInItsIndexIsRefusedByNameWhereverItIs) {
  const fs::path index = folder_ / "pack/index.lockstep";
  for (std::uint64_t at = 0; at < fs::file_size(index); at += 7) {
    SCOPED_TRACE(at);
    flip_byte(index, at);
    EXPECT_THAT([&] { put_one(folder_ / "pack"); }, staging_test::ThrowsErrorWith(index.string()));
    EXPECT_THAT(objects(), IsEmpty());
    flip_byte(index, at);
    if (HasFailure()) return;
  }
  EXPECT_EQ(content_of(put_one(folder_ / "pack").path), content_of(folder_ / "pack"));
}

TEST_F(StageSource, AFlippedBitInTheCachedIndexIsFoundByEveryVerification) {
  const fs::path copy = put_one(folder_ / "pack").path;
  for (const Verify verify : {Verify::quick, Verify::full}) {
    for (std::uint64_t at = 0; at < fs::file_size(folder_ / "pack/index.lockstep"); at += 61) {
      SCOPED_TRACE(at);
      flip_byte(copy / "index.lockstep", at);
      const PutResult again = put_one(folder_ / "pack", verify);
      EXPECT_FALSE(again.hit);
      EXPECT_THAT(again.note, testing::AllOf(HasSubstr("damaged"), HasSubstr("index.lockstep")));
      EXPECT_EQ(content_of(again.path), content_of(folder_ / "pack"));
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace lockstep::transfer
