// The program lockstep-pack.

#include <fcntl.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "common/files.h"
#include "common/process.h"
#include "staging/pack/tool/until_stopped.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::pack {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

class PackTool : public staging_test::StagingTest {
 protected:
  static ProcessResult run(std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_PACK);
    return run_process(words);
  }
  std::string at(const char* name) const { return (folder_ / name).string(); }
};

TEST_F(PackTool, CreatesListsAndShowsAFoldersFiles) {
  write("s/a.txt", "alpha");
  write("s/d/b.txt", "beta");
  const auto created = run({"create", at("s"), "--out", at("p"), "--json"});
  ASSERT_EQ(created.exit_code, 0) << created.error;
  const auto summary = nlohmann::json::parse(created.output);
  EXPECT_EQ(summary.at("samples"), 2);
  EXPECT_EQ(summary.at("payload_bytes"), 9);
  const auto listed = run({"ls", at("p"), "--json"});
  const auto first = nlohmann::json::parse(listed.output.substr(0, listed.output.find('\n')));
  EXPECT_EQ(first.at("key"), "a");
  EXPECT_EQ(first.at("kind"), "txt");
  EXPECT_EQ(first.at("bytes"), 5);
  EXPECT_EQ(first.at("offset"), 512);
  EXPECT_EQ(run({"cat", at("p"), "d/b"}).output, "beta");
  EXPECT_EQ(run({"cat", at("p"), "d/b.txt"}).output, "beta");
  EXPECT_EQ(run({"cat", at("p"), "--sample", "0"}).output, "alpha");
  EXPECT_EQ(run({"verify", at("p")}).exit_code, 0);
}

TEST_F(PackTool, TakesAListFromStandardInput) {
  write("s/a.txt", "alpha");
  write("s/b.txt", "beta");
  const auto packed =
      run_process({"sh", "-c", "cd \"$1\" && printf 'b.txt\\na.txt\\n' | \"$2\" create - --out \"$3\"", "sh",
                   at("s"), LOCKSTEP_PACK, at("p")});
  ASSERT_EQ(packed.exit_code, 0) << packed.error;
  EXPECT_EQ(run({"cat", at("p"), "--sample", "0"}).output, "beta");
}

TEST_F(PackTool, ShowsTokensAsNumbers) {
  make_pack("p", {{"a.tok", std::string("\x01\x00\xff\xff", 4)}}, 1 << 20, 2);
  const auto shown = nlohmann::json::parse(run({"cat", at("p"), "a", "--json"}).output);
  EXPECT_EQ(shown.at("tokens"), (std::vector<int>{1, 65535}));
  const auto stats = nlohmann::json::parse(run({"stats", at("p"), "--json"}).output);
  EXPECT_EQ(stats.at("unit"), "tokens");
  EXPECT_EQ(stats.at("total"), 2);
}

TEST_F(PackTool, ShowsFractionsAsTheyAre) {
  const std::vector<float> numbers = {0.5F, -2};
  write("m/a.idx", staging_test::megatron_index(7, {2}));
  write("m/a.bin", std::string(reinterpret_cast<const char*>(numbers.data()), 8));
  const auto shown = run({"cat", at("m"), "--sample", "0", "--json"});
  ASSERT_EQ(shown.exit_code, 0) << shown.error;
  EXPECT_EQ(nlohmann::json::parse(shown.output).at("tokens"), (std::vector<double>{0.5, -2}));
}

TEST_F(PackTool, DamageIsOneLineAndExitCodeOne) {
  const fs::path pack = make_pack("p", {{"a.txt", "alpha"}});
  staging_test::flip_byte(pack / "shard-000000.tar", 514);
  const auto verified = run({"verify", at("p"), "--json"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(verified.output).at("ok"), false);
  EXPECT_THAT(verified.error,
              HasSubstr("lockstep-pack: " + at("p") + "/shard-000000.tar, sample 0 (a.txt), offset 512"));
  EXPECT_EQ(std::count(verified.error.begin(), verified.error.end(), '\n'), 1);
}

TEST_F(PackTool, VerifyContinuesAfterADamagedSource) {
  staging_test::flip_byte(make_pack("p", {{"a.txt", "alpha"}}) / "shard-000000.tar", 514);
  make_pack("q", {{"a.txt", "alpha"}});
  const auto verified = run({"verify", at("p"), at("none"), at("q")});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.output, HasSubstr(at("q") + ": 1 samples"));
  EXPECT_THAT(verified.error, HasSubstr("sample 0 (a.txt)"));
  EXPECT_THAT(verified.error, HasSubstr(at("none") + ": No such file"));
  EXPECT_THAT(verified.error, HasSubstr("2 of 3"));
}

TEST_F(PackTool, LsPrintsOneLinePerFileForAnyName) {
  write("s/a\nb\x1b[31m.txt", "alpha");
  make_pack("q", {{"other", "x"}});
  ASSERT_EQ(run({"create", at("s"), "--out", at("p")}).exit_code, 0);
  const std::string listed = run({"ls", at("p")}).output;
  EXPECT_EQ(std::count(listed.begin(), listed.end(), '\n'), 1) << listed;
  EXPECT_EQ(listed.find('\x1b'), std::string::npos);
}

TEST_F(PackTool, IndexFailsIfTheIndexCannotBeStored) {
  const fs::path data = fs::path(LOCKSTEP_FORMAT_VECTORS) / "tfrecord/train.tfrecord-00000-of-00002";
  fs::create_directories(folder_ / "t");
  fs::copy_file(data, folder_ / "t/a.tfrecord");
  fs::create_directory(folder_ / "t/.a.tfrecord.lockstep");
  write("cache", "no folder");
  const std::string nowhere = "XDG_CACHE_HOME=" + at("cache");
  const auto refused = run_process({"env", nowhere, LOCKSTEP_PACK, "index", at("t/a.tfrecord")});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, HasSubstr("XDG_CACHE_HOME"));
  const std::string somewhere = "XDG_CACHE_HOME=" + at("folder");
  EXPECT_EQ(run_process({"env", somewhere, LOCKSTEP_PACK, "index", at("t/a.tfrecord")}).exit_code, 0);
}

TEST_F(PackTool, IndexMakesAnIndexBesideTarFilesOfOtherPrograms) {
  write("files/a/1.cls", "7");
  write("files/a/1.txt", "first");
  write("files/2.txt", "second");
  fs::create_directory(folder_ / "web");
  // The tar file has folders, and names such as "./a/1.txt".
  ASSERT_EQ(run_process({"tar", "-cf", at("web/x-0.tar"), "-C", at("files"), "--sort=name", "."}).exit_code,
            0);
  ASSERT_EQ(run_process({"tar", "-cf", at("web/x-1.tar"), "-C", at("files"), "2.txt"}).exit_code, 0);
  const auto tars = staging_test::content_of(folder_ / "web");
  for (const char* source : {"web", "web/x-0.tar"}) {
    const auto refused = run({"ls", at(source)});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_THAT(refused.error, HasSubstr("run lockstep-pack index " + at("web") + "\n"));
    EXPECT_THAT(refused.error, testing::Not(HasSubstr("create")));
  }
  const auto indexed = run({"index", at("web")});
  ASSERT_EQ(indexed.exit_code, 0) << indexed.error;
  EXPECT_THAT(indexed.output, HasSubstr(": 3 samples"));
  EXPECT_EQ(run({"cat", at("web"), "a/1.txt"}).output, "first");
  EXPECT_EQ(run({"cat", at("web"), "--sample", "2"}).output, "second");
  EXPECT_EQ(run({"verify", at("web")}).exit_code, 0);
  auto now = staging_test::content_of(folder_ / "web");
  EXPECT_EQ(now.erase("index.lockstep"), 1U);
  EXPECT_EQ(now, tars);
}

TEST_F(PackTool, TarFilesThatCannotBeIndexedAreRefusedWithTheMember) {
  write("web/a.txt", "alpha");
  fs::create_symlink("a.txt", folder_ / "web/b.txt");
  ASSERT_EQ(run_process({"tar", "-cf", at("web/x.tar"), "-C", at("web"), "a.txt", "b.txt"}).exit_code, 0);
  const auto link = run({"index", at("web")});
  EXPECT_EQ(link.exit_code, 1);
  EXPECT_THAT(link.error, HasSubstr("x.tar: member 'b.txt' at offset 1536 is not a regular file"));
  ASSERT_EQ(
      run_process({"tar", "-cf", at("web/x.tar"), "--hard-dereference", "-C", at("web"), "a.txt", "a.txt"})
          .exit_code,
      0);
  EXPECT_THAT(run({"index", at("web")}).error, HasSubstr("'a.txt' at offset 1536 appears twice"));
  EXPECT_FALSE(fs::exists(folder_ / "web/index.lockstep"));
}

TEST_F(PackTool, AWrongCallIsExitCodeTwo) {
  write("s/a", "x");
  EXPECT_EQ(run({"create", at("s"), "--out", at("p"), "--token-bytes", "3"}).exit_code, 2);
  EXPECT_EQ(run({"create", at("s"), "--out", at("p"), "--shard-size", "much"}).exit_code, 2);
  EXPECT_EQ(run({"create", at("s"), "--out", at("s/p")}).exit_code, 2);
  EXPECT_EQ(run({"create", at("s"), "--out", at("p"), "--shard-size", "0"}).exit_code, 2);
  EXPECT_EQ(run({"convert"}).exit_code, 2);
  EXPECT_EQ(run({"create", at("s"), "--out", ""}).exit_code, 2);
  EXPECT_EQ(run({"ls", ""}).exit_code, 2);
  EXPECT_EQ(run({"convert", at("s"), "--out", at("p"), "--shard-size", "0"}).exit_code, 2);
  make_pack("q", {{"a", "x"}});
  EXPECT_EQ(run({"cat", at("q"), "--sample", "-1"}).exit_code, 2);
  EXPECT_EQ(run({"cat", at("s")}).exit_code, 1);
}

// For the first one: continue_test.cpp, ASignalEndsTheProgramWithOneLineAndByThatSignal.
TEST_F(PackTool, ASecondSignalEndsTheProgramAlthoughTheWorkGoesOn) {
  const Tool tool("lockstep-pack", "");
  EXPECT_EQ(staging_test::in_child([&] {
              run_until_stopped(tool, [](const std::atomic<bool>&) {
                for (;;) ::raise(SIGINT);
              });
            }),
            128 + SIGINT);
}

}  // namespace
}  // namespace lockstep::pack
