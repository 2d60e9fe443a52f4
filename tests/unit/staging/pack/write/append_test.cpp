#include "staging/pack/write/append.h"

#include <sys/file.h>

#include "common/files.h"
#include "staging/pack/index.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/file_list.h"
#include "tests/unit/staging/every_call.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::HasSubstr;

class PackAppend : public staging_test::StagingTest {
 protected:
  PackAppend() {
    pack_ = make_large_pack("p", 20);
    for (int i = 0; i < 12; ++i)
      write(fmt::format("more/n{:02}.bin", i), std::string(3000, static_cast<char>('a' + i)));
  }
  AppendOptions options(FileSystem* system = nullptr) const {
    AppendOptions options;
    options.folder = folder_ / "more";
    options.files = files_below(options.folder, {});
    options.pack = pack_;
    options.shard_bytes = 16 << 10;
    options.threads = 2;
    options.system = system;
    return options;
  }
  fs::path pack_;
};

TEST_F(PackAppend, AddsShardsAfterTheExistingOnes) {
  const auto old = content_of(pack_);
  const PackingResult result = append(options());
  EXPECT_EQ(result.samples, 12U);
  EXPECT_EQ(result.shards, 3U);
  const auto now = content_of(pack_);
  EXPECT_EQ(now.size(), old.size() + 3);
  for (const auto& [name, content] : old) {
    if (name == kIndexName) continue;
    EXPECT_EQ(now.at(name), content) << name;
  }
  const auto reader = open(pack_);
  reader->verify();
  ASSERT_EQ(reader->size(), 32U);
  EXPECT_EQ(reader->key(19), "0019");
  EXPECT_EQ(reader->key(20), "n00");
  EXPECT_EQ(read_sample(*reader, 31), std::string(3000, 'l'));
}

TEST_F(PackAppend, GivesTheFingerprintOfAPackCreatedFromAllFiles) {
  append(options());
  std::map<std::string, std::string> all = content_of(folder_ / "p.src");
  all.merge(content_of(folder_ / "more"));
  EXPECT_EQ(open(pack_)->fingerprint(), open(make_pack("all", all))->fingerprint());
}

TEST_F(PackAppend, AReaderOfTheOldIndexContinues) {
  const auto before = open(pack_);
  const std::string first = read_sample(*before, 0);  // its shard is open now, the others are not
  append(options());
  ASSERT_EQ(before->size(), 20U);
  EXPECT_EQ(read_sample(*before, 0), first);
  before->verify();
}

TEST_F(PackAppend, CanBeRepeatedWithOtherPartsAndKinds) {
  append(options());
  write("third/x.json", "{}");
  write("third/x.txt", "text");
  AppendOptions third = options();
  third.folder = folder_ / "third";
  third.files = files_below(third.folder, {});
  append(third);
  const auto reader = open(pack_);
  reader->verify();
  ASSERT_EQ(reader->size(), 33U);
  EXPECT_EQ(reader->parts(32)[1].kind, "txt");
}

TEST_F(PackAppend, ASampleThatIsAlreadyInThePackIsNamed) {
  const auto before = content_of(pack_);
  write("more/0007.json", "{}");
  EXPECT_THAT([&] { append(options()); }, ThrowsErrorWith("0007.json", "already has a sample '0007'"));
  EXPECT_EQ(content_of(pack_), before);
}

TEST_F(PackAppend, ARepeatedCallReportsThatAllFilesAreInThePack) {
  append(options());
  const auto before = content_of(pack_);
  EXPECT_THAT([&] { append(options()); },
              ThrowsErrorWith("all 12 files, with these names and sizes, are already in the pack"));
  write("more/n03.bin", "of another size");
  EXPECT_THAT([&] { append(options()); }, ThrowsErrorWith("n00.bin", "already has a sample 'n00'"));
  EXPECT_EQ(content_of(pack_), before);
}

TEST_F(PackAppend, TokensMustHaveThePacksSize) {
  pack_ = make_pack("t", {{"a.tok", "12345678"}}, 1 << 20, 4);
  write("more/odd", "123");
  AppendOptions odd = options();
  odd.files = {"odd"};
  EXPECT_THAT([&] { append(odd); }, ThrowsErrorWith("more/odd has 3 bytes", "token size, 4"));
  odd.token_bytes = 2;
  EXPECT_THAT([&] { append(odd); }, ThrowsErrorWith("has tokens of 4 bytes", "--token-bytes is 2"));
  odd.token_bytes = 4;
  odd.files = {"n00.bin"};
  append(odd);
  EXPECT_EQ(open(pack_)->tokens(1), 750U);
}

TEST_F(PackAppend, OneShardIsRefused) {
  AppendOptions shard = options();
  shard.pack = pack_ / "shard-000000.tar";
  EXPECT_THAT([&] { append(shard); }, ThrowsErrorWith("shard-000000.tar is a shard"));
}

TEST_F(PackAppend, ASecondCallForAPackIsRefused) {
  fs::create_directory(pack_ / ".append.unfinished");
  const UniqueFd other = open_file(pack_ / ".append.unfinished", O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT([&] { append(options()); }, ThrowsErrorWith("being packed by another process"));
}

TEST_F(PackAppend, ShardsWithOtherNumbersStayAndNewOnesGetGreaterNumbers) {
  fs::rename(pack_ / "shard-000000.tar", pack_ / "shard-000041.tar");
  const Index index = Index::load(pack_ / kIndexName);
  std::string bytes = staging_test::read(pack_ / kIndexName);
  bytes.replace(bytes.find("shard-000000.tar"), 16, "shard-000041.tar");
  const std::size_t end = bytes.size() - sizeof(Digest);
  const Digest digest = digest_of(std::as_bytes(std::span(bytes)).first(end));
  bytes.replace(end, sizeof(Digest), reinterpret_cast<const char*>(digest.data()), sizeof(Digest));
  write("p/index.lockstep", bytes);
  append(options());
  open(pack_)->verify();
  EXPECT_TRUE(fs::exists(pack_ / "shard-000042.tar"));
}

/// Every kill and failure must leave the old pack or the new one, and the next call must complete the new
/// one.
class PackAppendFaults : public PackAppend {
 protected:
  PackAppendFaults() {
    fs::copy(pack_, folder_ / "before");
    append(options());
    whole_ = content_of(pack_);
    reset();
  }
  void reset() {
    fs::remove_all(pack_);
    fs::copy(folder_ / "before", pack_);
  }
  void expect_old_or_new() {
    const auto reader = open(pack_);
    reader->verify();
    EXPECT_THAT(reader->size(), testing::AnyOf(20U, 32U));
    try {
      continued_ = std::max(continued_, append(options()).continued_files);
    } catch (const Error& error) {
      EXPECT_EQ(reader->size(), 32U);
      EXPECT_THAT(error.what(), HasSubstr("are already in the pack"));
    }
    EXPECT_EQ(content_of(pack_), whole_);
    reset();
  }
  std::map<std::string, std::string> whole_;
  std::size_t continued_ = 0;
};

TEST_F(PackAppendFaults, KilledAtAnySystemCallItLeavesTheOldPackAndContinues) {
  const int kills = kill_at_every_call(
      {.work = [&](FileSystem& system) { append(options(&system)); }, .check = [&] { expect_old_or_new(); }});
  EXPECT_GT(kills, 25);
  EXPECT_EQ(continued_, 12U);
}

TEST_F(PackAppendFaults, FailedAtAnySystemCallItLeavesTheOldPackAndContinues) {
  const int refusals = fail_at_every_call(
      {.work = [&](FileSystem& system) { append(options(&system)); },
       .check = [&] { expect_old_or_new(); },
       .refused = [](const Error& error) { EXPECT_THAT(error.what(), HasSubstr("Input/output error")); }},
      EIO);
  EXPECT_GT(refusals, 25);
}

TEST_F(PackAppendFaults, ShardsThatAKilledCallMovedIntoThePackAreRemovedIfFewerAreAdded) {
  int call = 1;
  while (!fs::exists(pack_ / "shard-000003.tar")) {  // until the first new shard has been moved
    reset();
    ASSERT_EQ(in_child([&] {
                KilledAt killed(call);
                append(options(&killed));
              }),
              kKilled);
    ++call;
    if (Index::load(pack_ / kIndexName).samples() == 32U) FAIL() << "no kill between shards and index";
  }
  AppendOptions less = options();
  less.files.resize(2);
  append(less);
  const auto reader = open(pack_);
  reader->verify();
  EXPECT_EQ(reader->size(), 22U);
  EXPECT_EQ(content_of(pack_).size(), content_of(folder_ / "before").size() + 1);
}

}  // namespace
}  // namespace lockstep::pack
