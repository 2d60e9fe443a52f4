#include "staging/transfer/source.h"

#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::ThrowsErrorWith;
using testing::ElementsAre;
using testing::IsEmpty;

class TransferSource : public staging_test::StagingTest {
 protected:
  std::string name_of(const std::string& name) const { return look_at(resolve_source(at(name))).object; }
};

TEST_F(TransferSource, BracesKeepLeadingZeros) {
  for (const char* name : {"a-08.tar", "a-09.tar", "a-10.tar"}) write(name, "");
  EXPECT_THAT(expand_pattern(at("a-{08..10}.tar")),
              ElementsAre(at("a-08.tar"), at("a-09.tar"), at("a-10.tar")));
  EXPECT_THAT(expand_pattern(at("a-{10,08}.tar")), ElementsAre(at("a-10.tar"), at("a-08.tar")));
  EXPECT_THAT([&] { expand_pattern(at("a-{08..11}.tar")); }, ThrowsErrorWith("a-11.tar: No such file"));
}

TEST_F(TransferSource, WildcardsMustMatchAndLiteralNamesAreKept) {
  for (const char* name : {"a-0.tar", "a-1.tar", "b[1].tar"}) write(name, "");
  EXPECT_THAT(expand_pattern(at("a-?.tar")), ElementsAre(at("a-0.tar"), at("a-1.tar")));
  EXPECT_THAT(expand_pattern(at("b[1].tar")), ElementsAre(at("b[1].tar")));
  EXPECT_THAT([&] { expand_pattern(at("c*")); }, ThrowsErrorWith("c*: matches nothing"));
}

TEST_F(TransferSource, ResolvesAFolderAShardAndAPattern) {
  make_large_pack("p", 60);
  const Source whole = resolve_source(at("p") + "/");
  EXPECT_EQ(whole.folder, folder_ / "p");
  EXPECT_THAT(whole.shards, IsEmpty());
  const Source one = resolve_source(at("p/shard-000001.tar"));
  EXPECT_THAT(one.shards, ElementsAre("shard-000001.tar"));
  EXPECT_TRUE(one.one_file);
  const Source two = resolve_source(at("p/shard-{000000..000001}.tar"));
  EXPECT_THAT(two.shards, ElementsAre("shard-000000.tar", "shard-000001.tar"));
  EXPECT_FALSE(two.one_file);
  EXPECT_THAT(resolve_source(at("p/index.lockstep")).shards, IsEmpty());
}

TEST_F(TransferSource, APatternOverTwoPacksIsRefused) {
  make_pack("p", {{"a", "x"}});
  make_pack("q", {{"a", "x"}});
  EXPECT_THAT([&] { resolve_source(at("{p,q}/shard-000000.tar")); }, ThrowsErrorWith("name each pack"));
  EXPECT_THAT([&] { resolve_source(at("{p,q}")); }, ThrowsErrorWith("name each folder"));
}

TEST_F(TransferSource, TheObjectsNameDependsOnPathAndState) {
  make_large_pack("p", 60);
  make_large_pack("q", 60);
  const std::string first = name_of("p");
  EXPECT_EQ(name_of("p"), first);
  fs::create_symlink(folder_ / "p", folder_ / "link");
  EXPECT_EQ(name_of("link"), first);
  EXPECT_NE(name_of("q"), first);
  EXPECT_NE(name_of("p/shard-000000.tar"), first);
  const fs::path index = folder_ / "p/index.lockstep";
  fs::last_write_time(index, fs::last_write_time(index) + std::chrono::microseconds(1));
  EXPECT_NE(name_of("p"), first);
}

TEST_F(TransferSource, MissingEmptyAndDamagedSourcesHaveDifferentErrors) {
  fs::create_directory(folder_ / "empty");
  write("short/index.lockstep", "x");
  EXPECT_THAT([&] { resolve_source(at("none")); }, ThrowsErrorWith(at("none") + ": No such file"));
  EXPECT_THAT([&] { name_of("empty"); }, ThrowsErrorWith(at("empty") + " is empty"));
  EXPECT_THAT([&] { name_of("short"); }, ThrowsErrorWith(at("short"), "damaged index"));
}

TEST_F(TransferSource, TheObjectsNameOfPlainFilesDependsOnEveryFilesState) {
  for (const char* name : {"d/a", "d/b", "d/sub/c"}) write(name, "x");
  const std::string first = name_of("d");
  EXPECT_EQ(name_of("d"), first);
  EXPECT_NE(name_of("d/a"), first);
  const fs::path file = folder_ / "d/sub/c";
  fs::last_write_time(file, fs::last_write_time(file) + std::chrono::microseconds(1));
  const std::string touched = name_of("d");
  EXPECT_NE(touched, first);
  write("d/sub/d", "");
  EXPECT_NE(name_of("d"), touched);
}

TEST_F(TransferSource, AListOfFilesTravelsAsText) {
  for (const char* name : {"d/a", "d/sub/b\n\xff"}) write(name, "xyz");
  const Manifest here = look_at(resolve_source(at("d")));
  Manifest there;
  list_from_text(list_to_text(here), there);
  ASSERT_EQ(there.files.size(), 2U);
  EXPECT_EQ(there.files[1].name, here.files[1].name);
  EXPECT_EQ(there.files[1].size, 3U);
  EXPECT_TRUE(there.files[1].state->fits(*here.files[1].state));
  EXPECT_EQ(state_digest(there), state_digest(here));
  EXPECT_EQ(there.format, pack::Format::plain);
}

TEST_F(TransferSource, AListThatLeadsOutOfTheFolderIsRefused) {
  for (const char* name : {"../a", "/a", "", "a/../b", "."}) {
    Manifest bad;
    bad.format = pack::Format::plain;
    bad.files = {{name, 1, {}, {}}};
    Manifest there;
    EXPECT_THROW(list_from_text(list_to_text(bad), there), Error) << name;
  }
  Manifest there;
  EXPECT_THROW(list_from_text("", there), Error);
  EXPECT_THROW(list_from_text("{}", there), Error);
}

}  // namespace
}  // namespace lockstep::transfer
