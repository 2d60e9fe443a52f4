#include "staging/pack/write/create.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>

#include "common/files.h"
#include "common/process.h"
#include "staging/pack/reader.h"
#include "staging/pack/write/file_list.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::ThrowsErrorWith;
using testing::ElementsAre;
using testing::HasSubstr;

class PackCreate : public staging_test::StagingTest {
 protected:
  CreateOptions options(const fs::path& source, const fs::path& out) const {
    CreateOptions options;
    options.folder = folder_ / source;
    options.files = files_below(folder_ / source, {});
    options.out = folder_ / out;
    return options;
  }
};

TEST_F(PackCreate, TheSameFilesGiveTheSameBytesWithAnyNumberOfThreads) {
  make_large_pack("a", 600);
  write("a.src/large.bin", std::string(1'000'000, 'x'));
  CreateOptions one = options("a.src", "one");
  one.threads = 1;
  CreateOptions many = options("a.src", "many");
  many.threads = 7;
  create(one);
  fs::last_write_time(folder_ / "a.src/0001.bin", fs::file_time_type::clock::now());
  create(many);
  EXPECT_EQ(content_of(folder_ / "one"), content_of(folder_ / "many"));
}

TEST_F(PackCreate, FewDescriptorsDoNotChangeTheResult) {
  for (int i = 0; i < 100; ++i) {
    write(fmt::format("a/{:02}/small.bin", i), std::string(10, 'x'));
    write(fmt::format("a/{:02}/large.bin", i), std::string(300'000, 'y'));  // not read ahead, but kept open
  }
  CreateOptions many = options("a", "many");
  many.threads = 64;
  create(many);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 64;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  CreateOptions again = options("a", "again");
  again.threads = 64;
  EXPECT_NO_THROW(create(again));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(content_of(folder_ / "many"), content_of(folder_ / "again"));
}

TEST_F(PackCreate, ShardsStayBelowTheirSizeAndSamplesAreNotDivided) {
  std::map<std::string, std::string> files;
  for (const char* key : {"a", "b", "c", "d"}) {
    files[std::string(key) + ".1"] = std::string(900, 'x');
    files[std::string(key) + ".2"] = std::string(900, 'y');
  }
  const auto reader =
      open(make_pack("p", files, 7000));  // a sample takes 3072 bytes, and the end of a shard 1024
  ASSERT_EQ(reader->size(), 4U);
  std::vector<std::string> shards;
  for (std::size_t i = 0; i < reader->size(); ++i) {
    const std::vector<Part> parts = reader->parts(i);
    ASSERT_EQ(parts.size(), 2U);
    EXPECT_EQ(parts[0].shard, parts[1].shard);
    shards.emplace_back(parts[0].shard);
  }
  EXPECT_THAT(shards,
              ElementsAre("shard-000000.tar", "shard-000000.tar", "shard-000001.tar", "shard-000001.tar"));
}

TEST_F(PackCreate, AnExistingFolderIsNotChanged) {
  write("s/a", "x");
  write("out/precious", "mine");
  EXPECT_THAT([&] { create(options("s", "out")); },
              ThrowsErrorWith((folder_ / "out").string(), "already exists"));
  EXPECT_EQ(content_of(folder_ / "out"), (std::map<std::string, std::string>{{"precious", "mine"}}));
}

TEST_F(PackCreate, AnExistingEmptyFolderBecomesThePack) {
  write("s/a", "x");
  fs::create_directory(folder_ / "out");
  create(options("s", "out"));
  EXPECT_EQ(open(folder_ / "out")->size(), 1U);
}

TEST_F(PackCreate, FilesOfAnInterruptedCallAreHiddenAndDoNotGetIntoThePack) {
  write("s/a", std::string(5000, 'x'));
  EXPECT_EQ(staging_test::in_child([&] {
              CreateOptions killed = options("s", "out");
              killed.progress = [](std::size_t, std::uint64_t) { ::_exit(9); };
              create(killed);
            }),
            9);
  EXPECT_THAT(names_here(), ElementsAre(".out.unfinished", "s"));
  EXPECT_THAT([&] { open(folder_ / "out"); }, ThrowsErrorWith("No such file"));
  write(".out.unfinished/pack/shard-000007.tar", "of a call that packed more");
  write(".out.unfinished/shard-000000.tar", "of another version");
  create(options("s", "out"));
  EXPECT_THAT(names_here(), ElementsAre("out", "s"));
  open(folder_ / "out")->verify();
  EXPECT_FALSE(fs::exists(folder_ / "out/shard-000007.tar"));
}

TEST_F(PackCreate, ASecondCallForAFolderIsRefused) {
  write("s/a", "x");
  fs::create_directory(folder_ / ".out.unfinished");
  const UniqueFd other = open_file(folder_ / ".out.unfinished", O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_THAT([&] { create(options("s", "out")); }, ThrowsErrorWith("being packed by another process"));
}

TEST_F(PackCreate, AFileOfTokensWithAWrongLengthIsNamed) {
  EXPECT_THAT(
      [&] {
        make_pack("p", {{"a.tok", "1234"}, {"b.tok", "12345"}}, 1 << 20, 4);
      },
      ThrowsErrorWith("b.tok has 5 bytes", "token size, 4"));
  EXPECT_THAT(names_here(), ElementsAre("p.src"));
}

TEST_F(PackCreate, TokensInTwoPartsOfOneSampleAreRefused) {
  EXPECT_THAT(
      [&] {
        make_pack("p", {{"git.1", "1234"}, {"git.3", "1234"}}, 1 << 20, 4);
      },
      ThrowsErrorWith("git.1 and git.3", "a sample of tokens is one file"));
}

TEST_F(PackCreate, AFileThatGrowsWhileItIsReadIsNamed) {
  write("s/a", std::string(300'000, 'x'));  // too large to be read ahead
  write("s/b", std::string(300'000, 'y'));
  CreateOptions racing = options("s", "out");
  racing.progress = [&](std::size_t files, std::uint64_t) {
    if (files == 1) write("s/b", std::string(400'000, 'z'));
  };
  // The loader may open s/b before or after it grows: size and content must agree, or the call fails.
  try {
    create(racing);
    open(folder_ / "out")->verify();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("s/b changed while it was being packed"));
  }
}

}  // namespace
}  // namespace lockstep::pack
