#include <sstream>

#include "staging/pack/member_name.h"
#include "staging/pack/write/file_list.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using staging_test::ThrowsErrorWith;
using testing::ElementsAre;

std::vector<std::string> listed(const std::string& lines, const std::vector<std::string>& filters = {}) {
  std::istringstream stream(lines);
  return files_listed(stream, filters);
}

TEST(MemberNames, KeyEndsAtTheFileNamesFirstDot) {
  const auto [key, kind] = split_member_name("a.b/cat.seg.png");
  EXPECT_EQ(key, "a.b/cat");
  EXPECT_EQ(kind, "seg.png");
}

// tests/unit/staging/pack/tool/other_files_test.py compares more names with WebDataset.
TEST(MemberNames, AHiddenFileBelongsToTheFolderWhoseNameHasNoDot) {
  EXPECT_EQ(split_member_name("d/.hid.jpg").key, "d/");
  EXPECT_EQ(split_member_name("d/.hid.jpg").kind, "hid.jpg");
  EXPECT_EQ(split_member_name("a.b/c/.hid").key, "a.b/c/");
  for (const char* name : {".hid.jpg", "a.b/.hid.jpg", "a/.b/.hid", "a.\n/b.c"})
    EXPECT_EQ(split_member_name(name).key, name);
}

TEST(MemberNames, ANameThatEndsInItsFirstDotBelongsToTheSampleBeforeTheDot) {
  EXPECT_EQ(split_member_name("d/end.").key, "d/end");
  EXPECT_NE(split_member_name("d/end.").kind, split_member_name("d/end").kind);
  EXPECT_EQ(split_member_name("a..").key, "a");
}

TEST(MemberNames, JoiningReversesSplitting) {
  for (const char* name : {"a", "a.", "a..", "a...", "a.b.", "d/a.", ".a", ".a.b", "a..b", "a.b", "d/.e",
                           "d.e/f", "d/e.f.g", "."}) {
    const auto [key, kind] = split_member_name(name);
    EXPECT_EQ(join_member_name(key, kind), name);
  }
}

TEST(MemberNames, NamesThatLeaveTheFolderAreUnsafe) {
  using std::string_literals::operator""s;
  for (const std::string& name :
       {""s, "/a"s, ".."s, "a/../b"s, "../a"s, "a/.."s, "./a"s, "a//b"s, "a/"s, "a\0b"s}) {
    EXPECT_NE(unsafe_member_name(name), "") << name;
  }
  for (const char* name : {"a", "..a", "a..", "a/..b", ".hidden/x"})
    EXPECT_EQ(unsafe_member_name(name), "") << name;
}

class FileList : public staging_test::StagingTest {};

TEST_F(FileList, PartsOfASampleAreNeighboursEvenIfOtherNamesSortBetweenThem) {
  for (const char* name : {"s/a.txt", "s/a-b.txt", "s/a", "s/a.json", "s/d/a.txt"}) write(name, "x");
  EXPECT_THAT(files_below(folder_ / "s", {}), ElementsAre("a", "a.json", "a.txt", "a-b.txt", "d/a.txt"));
}

TEST_F(FileList, FiltersMatchPathOrName) {
  for (const char* name : {"s/a.txt", "s/d/b.txt", "s/d/c.bin"}) write(name, "x");
  EXPECT_THAT(files_below(folder_ / "s", {"*.txt"}), ElementsAre("a.txt", "d/b.txt"));
  EXPECT_THAT(files_below(folder_ / "s", {"d/*"}), ElementsAre("d/b.txt", "d/c.bin"));
}

TEST_F(FileList, AnEmptyFolderIsRefused) {
  fs::create_directory(folder_ / "s");
  EXPECT_THAT([&] { files_below(folder_ / "s", {}); }, ThrowsErrorWith("nothing to pack", "holds no files"));
}

TEST_F(FileList, ASymbolicLinkIsRefusedByName) {
  write("s/a", "x");
  fs::create_symlink("/etc/passwd", folder_ / "s/b");
  EXPECT_THAT([&] { files_below(folder_ / "s", {}); },
              ThrowsErrorWith((folder_ / "s/b").string(), "symbolic link"));
  EXPECT_THAT(files_below(folder_ / "s", {"a"}), ElementsAre("a"));
}

TEST_F(FileList, AListKeepsTheOrderOfSamplesAndGroupsTheirParts) {
  EXPECT_THAT(listed("z.txt\n./b.bin\n\na.txt\nz.json\n"), ElementsAre("z.json", "z.txt", "b.bin", "a.txt"));
}

TEST_F(FileList, ABadLineOfAListIsNamed) {
  EXPECT_THAT([] { listed("a\n/etc/passwd\n"); }, ThrowsErrorWith("line 2", "/etc/passwd", "absolute"));
  EXPECT_THAT([] { listed("a\nb/../../c\n"); }, ThrowsErrorWith("line 2", "leaves its folder"));
  EXPECT_THAT([] { listed("a\nb\na\n"); }, ThrowsErrorWith("'a' twice"));
  EXPECT_THAT([] { listed(std::string("a\0b\0", 4)); }, ThrowsErrorWith("line 1", "zero byte", "-print"));
}

}  // namespace
}  // namespace lockstep::pack
