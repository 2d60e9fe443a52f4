// The command lines of lockstep-stage ls, verify, status, gc and prefetch.

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "common/process.h"
#include "tests/unit/staging/cache/cache_world.h"
#include "tests/unit/staging/pack/formats/format_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using nlohmann::json;
using staging_test::mode_of;
using testing::HasSubstr;

class CacheTool : public staging_test::CacheTest {
 protected:
  static ProcessResult run(std::vector<std::string> words) {
    words.insert(words.begin(), LOCKSTEP_STAGE);
    return run_process(words);
  }
  static json run_json(std::vector<std::string> words) {
    words.emplace_back("--json");
    const ProcessResult result = run(words);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    // The last line, if there are several.
    const std::size_t end = result.output.find_last_not_of('\n');
    const std::size_t begin = result.output.rfind('\n', end);
    return json::parse(result.output.substr(begin == std::string::npos ? 0 : begin + 1), nullptr, false);
  }
};

TEST_F(CacheTool, OnlyItsOwnerCanUseAStoreWhateverTheUmask) {
  make_pack("p", {{"a", "x"}});
  const mode_t before = ::umask(0777);
  const ProcessResult put = run({"put", at("p"), "--cache", cache().string()});
  ::umask(before);
  ASSERT_EQ(put.exit_code, 0) << put.error;
  for (const char* name : {"", "objects", "locks", "leases", "locks/.room"}) {
    EXPECT_EQ(mode_of(cache() / name), fs::is_directory(cache() / name) ? 0700U : 0600U) << name;
  }
}

TEST_F(CacheTool, StatusReportsBytesHeldInUseAndIdle) {
  Store store(cache());
  publish(store, "a", std::string(1000, 'x'));
  publish(store, "b", std::string(500, 'x'));
  const Step step(store, "7.0");
  store.add_lease("a", step.file());
  const json status = run_json({"status", "--cache", cache().string(), "--keep", "0", "--quota", "1000"});
  EXPECT_EQ(status.at("objects"), 2);
  EXPECT_EQ(status.at("bytes"), 1500);
  EXPECT_EQ(status.at("in_use"), 1000);
  EXPECT_EQ(status.at("idle"), 500);
  EXPECT_GT(status.at("free"), 0);
  EXPECT_THAT(status.at("problems").at(0).get<std::string>(), HasSubstr("500 B over the quota"));
  const json kept = run_json({"status", "--cache", cache().string()});
  EXPECT_EQ(kept.at("idle"), 0);
  EXPECT_EQ(kept.at("recent"), 500);
  EXPECT_EQ(run({"status", "--cache", ""}).exit_code, 2);
  write("cache/objects/notes.txt", "mine");
  EXPECT_THAT(run({"status", "--cache", cache().string()}).output,
              HasSubstr("objects/notes.txt is not a folder; lockstep-stage gc removes it"));
  fs::remove(cache() / "objects/notes.txt");
  const json listed = run_json({"ls", "--cache", cache().string()});
  EXPECT_EQ(listed.at("object"), "b");
  EXPECT_EQ(listed.at("leased"), false);
  const ProcessResult text = run({"ls", "--cache", cache().string()});
  EXPECT_THAT(text.output, HasSubstr("by 7.0 /source"));
}

TEST_F(CacheTool, GcRemovesIdleObjectsAndReportsThem) {
  Store store(cache());
  publish(store, "a", std::string(1000, 'x'));
  const std::vector<std::string> words = {"gc", "--cache", cache().string(), "--quota", "10", "--keep", "0"};
  std::vector<std::string> dry = words;
  dry.emplace_back("--dry-run");
  EXPECT_THAT(run(dry).output, HasSubstr("would remove object a (1000 B), /source: over the quota of 10 B"));
  EXPECT_TRUE(store.has("a"));
  const json done = run_json(words);
  EXPECT_EQ(done.at("bytes"), 1000);
  EXPECT_EQ(done.at("holds"), 0);
  EXPECT_FALSE(store.has("a"));
  EXPECT_EQ(run({"gc", "--cache", cache().string(), "--total", "1"}).exit_code, 2);
  EXPECT_EQ(run({"gc", "--all", "--cache", cache().string()}).exit_code, 1) << "the folder is a single store";
  const ProcessResult all =
      run({"gc", "--all", "--cache", cache().string(), "--total", "1G", "--reserve", "2G"});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_THAT(all.error, HasSubstr("--reserve (2G) must not exceed --total (1G)"));
}

TEST_F(CacheTool, GcAllKeepsToTheConfigurationAndWritesTheUsage) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const std::string config = at("lockstep.conf");
  const auto configure = [&](const std::string& text) {
    write("lockstep.conf", text);
    fs::permissions(config, fs::perms(0644));
  };
  configure("quota = 1K\n");
  EXPECT_THAT(run({"gc", "--all", "--config", config}).error, HasSubstr("names no cache: nothing to do"));
  configure(
      fmt::format("cache = {}\nkeep = 0\nquota = 1K\nram = 2K\nram_cache = {}\n", at("disk"), at("ram")));
  for (const char* tier : {"disk", "ram"}) {
    fs::create_directory(at(tier));
    fs::permissions(at(tier), fs::perms(0755));
    Store store(at(tier) + "/0");
    for (const char* name : {"a", "b", "c"}) publish(store, name, std::string(700, 'x'));
  }
  const ProcessResult done = run({"gc", "--all", "--config", config});
  EXPECT_EQ(done.exit_code, 0) << done.error;
  EXPECT_EQ(names(fs::path(at("disk")) / "0/objects").size(), 1U) << done.output;
  EXPECT_EQ(names(fs::path(at("ram")) / "0/objects").size(), 2U) << done.output;
  EXPECT_EQ(mode_of(at("ram") + "/usage.json"), 0644U);
  json usage = json::parse(read_text_file(at("ram") + "/usage.json"));
  EXPECT_NEAR(usage.at("written").get<double>(), static_cast<double>(::time(nullptr)), 60);
  usage.erase("written");
  EXPECT_EQ(usage, json::parse(R"({"version": 1, "users": [{"user": "root", "bytes": 1400, "objects": 2}],
                                   "total": 1400, "shared": 0})"));
  EXPECT_EQ(run({"gc", "--all", "--config", config, "--quota", "1"}).exit_code, 2) << "one source of limits";
  EXPECT_EQ(run({"gc"}).exit_code, 2);
  EXPECT_THAT(run({"gc", "--all", "--config", at("none")}).error, HasSubstr("cannot read " + at("none")));
}

TEST_F(CacheTool, ADamagedDescriptionIsFoundAndNamed) {
  Store store(cache());
  publish(store, "a", "data");
  fs::permissions(cache() / "objects/a/object.json", fs::perms::owner_all);
  write("cache/objects/a/object.json", "{");
  const ProcessResult verified = run({"verify", "--cache", cache().string()});
  EXPECT_EQ(verified.exit_code, 1);
  EXPECT_THAT(verified.output, HasSubstr("a/object.json is damaged"));
  EXPECT_THAT(run({"status", "--cache", cache().string()}).output, HasSubstr("problem: "));
}

TEST_F(CacheTool, PrefetchRefusesSourcesThatNotEveryoneMayRead) {
  make_pack("p", {{"a", "content"}});
  fs::permissions(folder_, fs::perms(0755));
  const auto refused = [&](const std::string& part) {
    const ProcessResult result = run({"prefetch", at("p"), "--cache", at("cache/shared")});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.error, HasSubstr("not everyone may read " + part + ","));
    EXPECT_FALSE(fs::exists(at("cache/shared")));
  };
  fs::permissions(at("p/index.lockstep"), fs::perms(0640));
  refused(at("p/index.lockstep"));
  fs::permissions(at("p/index.lockstep"), fs::perms(0644));
  fs::permissions(folder_, fs::perms(0700));
  refused(folder_);
  fs::permissions(folder_, fs::perms(0755));
  fs::permissions(at("p"), fs::perms(0705));  // the members of its group may not
  refused(at("p"));
  fs::permissions(at("p"), fs::perms(0755));
  // A list that gives a user less than others have: the mode stays 0644.
  struct Entry {
    std::uint16_t tag, permissions;
    std::uint32_t id;
  };
  struct {
    std::uint32_t version = 2;
    Entry entries[5] = {{0x01, 6, ~0U}, {0x02, 0, 12345}, {0x04, 4, ~0U}, {0x10, 4, ~0U}, {0x20, 4, ~0U}};
  } list;
  const auto set_list = [&] {
    return ::setxattr(at("p/index.lockstep").c_str(), "system.posix_acl_access", &list, sizeof list, 0);
  };
  if (set_list() == 0) {
    refused(at("p/index.lockstep"));
    list.entries[1].permissions = 6;
    ASSERT_EQ(set_list(), 0);
    EXPECT_EQ(run_json({"prefetch", at("p"), "--cache", at("cache/shared")}).at("readers"), "all");
  } else {
    EXPECT_EQ(errno, ENOTSUP);
  }
  fs::permissions(folder_, fs::perms(0700));
  EXPECT_EQ(run_json({"prefetch", at("p"), "--everyone", "--cache", at("cache/shared")}).at("readers"),
            "all");
}

TEST_F(CacheTool, PrefetchTakesAMegatronPairByItsPrefix) {
  fs::permissions(folder_, fs::perms(0755));
  write("m.bin", std::string(40, '\0'));
  write("m.idx", staging_test::megatron_index(4, {10}));
  for (const char* name : {"m", "m.bin"}) {
    fs::permissions(at("m.bin"), fs::perms(0644));
    fs::permissions(at("m.idx"), fs::perms(0600));
    EXPECT_THAT(run({"prefetch", at(name), "--cache", at("cache/shared")}).error,
                HasSubstr("not everyone may read " + at("m.idx") + ","));
    fs::permissions(at("m.idx"), fs::perms(0644));
    EXPECT_EQ(run_json({"prefetch", at(name), "--cache", at("cache/shared")}).at("readers"), "all");
  }
}

TEST_F(CacheTool, PrefetchFillsTheSharedStoreWhateverTheUmask) {
  make_pack("p", {{"a", "content"}});
  fs::permissions(folder_, fs::perms(0755));
  fs::create_directory(cache());
  const mode_t before = ::umask(077);
  const json done = run_json({"prefetch", at("p"), "--cache", at("cache/shared")});
  ::umask(before);
  EXPECT_EQ(done.at("hit"), false);
  for (const char* path : {"shared", "shared/objects", "shared/locks", "shared/leases"})
    EXPECT_EQ(mode_of(cache() / path), 0755U);
  EXPECT_EQ(mode_of(cache() / "shared/leases" / done.at("object").get<std::string>()), 01777U);
  EXPECT_EQ(mode_of(fs::path(done.at("path")) / "index.lockstep"), 0444U);
  EXPECT_EQ(run_json({"prefetch", at("p"), "--cache", at("cache/shared")}).at("hit"), true);
  EXPECT_EQ(run({"prefetch", at("p"), "--cache", at("cache/shared"), "--group", "no such group"}).exit_code,
            2);
}

}  // namespace
}  // namespace lockstep::cache
