// The command line of lockstep-stage put.

#include <array>
#include <cstdint>
#include <future>
#include <nlohmann/json.hpp>

#include "common/process.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

class StageTool : public staging_test::StagingTest {
 protected:
  static ProcessResult run(std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_STAGE);
    return run_process(words);
  }
};

TEST_F(StageTool, PutPrintsOneObjectPerSource) {
  make_pack("p", {{"a", "x"}});
  make_pack("q", {{"a", "y"}});
  const auto result = run({"put", at("p"), at("q"), "--cache", at("cache"), "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  ASSERT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 2);
  const auto first = nlohmann::json::parse(result.output.substr(0, result.output.find('\n')));
  EXPECT_EQ(first.at("source"), at("p"));
  EXPECT_EQ(first.at("hit"), false);
  EXPECT_EQ(first.at("from_source"), first.at("bytes"));
  EXPECT_EQ(first.at("from_peers"), 0);
  EXPECT_GT(first.at("seconds"), 0.0);
  EXPECT_TRUE(fs::exists(fs::path(first.at("path")) / "index.lockstep"));
  const auto again = nlohmann::json::parse(
      run({"put", at("p"), "--cache", at("cache"), "--json", "--nodes", "n1", "--node-id", "0"}).output);
  EXPECT_EQ(again.at("hit"), true);
}

TEST_F(StageTool, SourcesPutBeforeAFailureArePrinted) {
  make_pack("p", {{"a", "x"}});
  write("q/a", "y");
  fs::create_directory(folder_ / "empty");
  const auto result = run({"put", at("p"), at("empty"), at("q"), "--cache", at("cache"), "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(nlohmann::json::parse(result.output).at("source"), at("p"));
  EXPECT_EQ(result.error, "lockstep-stage: " + at("empty") + " is empty\n");
}

// Without extra settings: no port, no key.
TEST_F(StageTool, NodesThatPutTogetherReadTheSourceOnce) {
  make_pack("p", {{"a", std::string(100'000, 'x')}});
  const auto put = [&](int node) {
    return std::async(std::launch::async, [this, node] {
      return run_process({"env", "-u", "XDG_CONFIG_HOME", "-u", "LOCKSTEP_RENDEZVOUS_KEY",
                          "HOME=" + at("home"), LOCKSTEP_STAGE, "put", at("p"), "--cache",
                          at("cache") + std::to_string(node), "--nodes", "127.0.0.1,localhost", "--node-id",
                          std::to_string(node), "--lanes", "2", "--json"});
    });
  };
  std::array<std::future<ProcessResult>, 2> running = {put(0), put(1)};
  std::uint64_t bytes = 0, from_source = 0, from_peers = 0;
  for (auto& end : running) {
    const ProcessResult result = end.get();
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto object = nlohmann::json::parse(result.output);
    bytes = object.at("bytes");
    from_source += object.at("from_source").get<std::uint64_t>();
    from_peers += object.at("from_peers").get<std::uint64_t>();
  }
  EXPECT_EQ(from_source, bytes);
  EXPECT_EQ(from_peers, bytes);
  const fs::path key = folder_ / "home/.config/lockstep/nodes.key";
  EXPECT_EQ(fs::status(key).permissions(), fs::perms::owner_read | fs::perms::owner_write);
  EXPECT_EQ(std::distance(fs::directory_iterator(key.parent_path()), fs::directory_iterator()), 1);

  fs::permissions(key, fs::perms::group_read, fs::perm_options::add);
  const ProcessResult refused = put(0).get();
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.error, HasSubstr("other users can read or write "));
}

// A reader of the line may be in another folder.
TEST_F(StageTool, PathsAreAbsolute) {
  make_pack("p", {{"a", "x"}});
  const auto in_folder = [&](const std::string& words) {
    return nlohmann::json::parse(run_process({"sh", "-c", "cd \"$1\" && exec \"$2\" " + words + " --json",
                                              "sh", folder_.string(), LOCKSTEP_STAGE})
                                     .output);
  };
  const std::string path = in_folder("put p --cache cache").at("path");
  EXPECT_TRUE(fs::path(path).is_absolute());
  EXPECT_EQ(in_folder("ls --cache cache").at("path"), path);
}

TEST_F(StageTool, LsListsObjectsAndVerifyNamesDamage) {
  make_pack("p", {{"a", "content"}});
  const auto put = nlohmann::json::parse(run({"put", at("p"), "--cache", at("cache"), "--json"}).output);
  const auto listed = nlohmann::json::parse(run({"ls", "--cache", at("cache"), "--json"}).output);
  EXPECT_EQ(listed.at("source"), at("p"));
  EXPECT_EQ(listed.at("path"), put.at("path"));
  EXPECT_EQ(listed.at("bytes"), put.at("bytes"));
  EXPECT_EQ(run({"verify", "--cache", at("cache")}).exit_code, 0);
  staging_test::flip_byte(fs::path(put.at("path")) / "shard-000000.tar", 513);
  const auto verified = run({"verify", "--cache", at("cache"), "--json"});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.error, HasSubstr("1 of 1 objects"));
  const auto line = nlohmann::json::parse(verified.output);
  EXPECT_EQ(line.at("ok"), false);
  EXPECT_THAT(line.at("error").get<std::string>(), HasSubstr("sample 0 (a), offset 512"));
}

TEST_F(StageTool, AWrongCallGivesExitCodeTwo) {
  make_pack("p", {{"a", "x"}});
  EXPECT_EQ(run({"put", at("p")}).exit_code, 2);
  EXPECT_EQ(run({"put", at("p"), "--cache", at("c"), "--verify", "some"}).exit_code, 2);
  EXPECT_EQ(run({"put", at("p"), "--cache", at("c"), "--nodes", "n1:x,n2", "--node-id", "1"}).exit_code, 2);
  EXPECT_EQ(run({"put", at("p"), "--cache", at("c"), "--nodes", "a:1,b:2", "--node-id", "2"}).exit_code, 2);
  EXPECT_EQ(run({"put", at("p"), "--cache", at("c"), "--quota", "much"}).exit_code, 2);
  EXPECT_EQ(run({"gc"}).exit_code, 2);
}

}  // namespace
}  // namespace lockstep::transfer
