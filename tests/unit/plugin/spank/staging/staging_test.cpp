#include "plugin/spank/staging/staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::spank {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string arguments(const StepOnNode& step, const Config& config, const Settings& settings) {
  std::string line;
  for (const std::string& each : step_arguments(step, config, settings)) line += each + " ";
  return line;
}

StepOnNode some_step() {
  StepOnNode step;
  step.job = 7;
  step.step = "0";
  step.node = "n1";
  step.store = "/cache/1000";
  return step;
}

TEST(Staging, WithoutLimitsNoLimitIsPassed) {
  EXPECT_EQ(
      arguments(some_step(), {}, {}),
      "/usr/bin/lockstep-stage step --cache /cache/1000 --job 7 --step 0 --node n1 --node-id 0 --nodes 1 --mode block --on-error fail --verify quick --keep 600 --cooperate on ");
}

TEST(Staging, TheAdministratorsLimitsAndTheStepsLeaseArePassed) {
  Config config;
  config.quota = 1000;
  config.min_free = 5000;
  config.keep = 0;
  config.shared = "/cache/shared";
  config.bandwidth = 77;
  config.source_patience = 30;
  config.cooperate = false;
  config.first_port = 20000;
  config.last_port = 20010;
  config.peer_networks = {"10.1.0.0/16", "fd00::/8"};
  StepOnNode step = some_step();
  step.lease = "/cache/1000/leases/held/7.0";
  step.lifetime_fd = 12;
  step.cpus = "2-3";
  Settings settings;
  settings.mode = "background";
  settings.on_error = "source";
  settings.verify = "full";
  const std::string line = arguments(step, config, settings);
  for (const char* part :
       {"--mode background ", "--on-error source ", "--verify full ", "--quota 1000 ", "--min-free 5000 ",
        "--keep 0 ", "--shared /cache/shared ", "--lease /cache/1000/leases/held/7.0 ", "--bandwidth 77 ",
        "--source-patience 30 ", "--watch-fd 3 ", "--cpus 2-3 ", "--cooperate off ", "--ports 20000-20010 ",
        "--peer-network 10.1.0.0/16,fd00::/8 "}) {
    EXPECT_THAT(line, HasSubstr(part));
  }
}

TEST(Staging, EachNodeOfAStepMayReadAnEqualShareOfTheSourceBandwidth) {
  Config config;
  config.source_bandwidth = 1000;
  StepOnNode step = some_step();
  step.nodes = 4;
  EXPECT_THAT(arguments(step, config, {}), HasSubstr("--bandwidth 250 "));
  config.bandwidth = 77;
  EXPECT_THAT(arguments(step, config, {}), HasSubstr("--bandwidth 77 "));
  step.nodes = 5000;
  EXPECT_THAT(arguments(step, config, {}), HasSubstr("--bandwidth 1 ")) << "0 would mean no limit";
}

TEST(Staging, TheRamTierHasItsOwnFolderAndLimit) {
  Config config;
  config.cache = "/disk";
  config.ram_cache = "/ram";
  config.quota = 1000;
  config.min_free = 5000;
  config.ram = 10;
  Settings settings;
  EXPECT_EQ(tier_folder(config, settings), "/disk");
  settings.tier = "ram";
  EXPECT_EQ(tier_folder(config, settings), "/ram");
  const std::string line = arguments(some_step(), config, settings);
  EXPECT_THAT(line, HasSubstr("--quota 10 "));
  EXPECT_THAT(line, Not(HasSubstr("--min-free")));
}

TEST(Staging, ASourceWithoutAnEntryIsMissing) {
  const lockstep::testing::TemporaryFolder temporary;
  StepOnNode step = some_step();
  step.store = temporary.path();
  const std::vector<std::string> sources{"/x/pack/a-{00..31}.tar", "/x/b.tar"};
  EXPECT_EQ(missing_source(step, sources), sources[0]);
  std::filesystem::create_directories(data_folder(step) + "/pack");
  EXPECT_EQ(missing_source(step, sources), sources[1]);
  std::filesystem::create_symlink("/nonexistent", data_folder(step) + "/b.tar");
  EXPECT_EQ(missing_source(step, sources), "");
}

TEST(Staging, AMegatronPairNeedsBothFiles) {
  const lockstep::testing::TemporaryFolder temporary;
  StepOnNode step = some_step();
  step.store = temporary.path();
  std::filesystem::create_directories(data_folder(step));
  std::ofstream(data_folder(step) + "/tokens.bin") << "x";
  EXPECT_EQ(missing_source(step, {"/x/tokens"}), "/x/tokens");
  std::ofstream(data_folder(step) + "/tokens.idx") << "x";
  EXPECT_EQ(missing_source(step, {"/x/tokens"}), "");
}

// Every user of a node can read the command lines there.
TEST(Staging, TheNamesOfTheDataAreNotOnTheHelpersCommandLine) {
  const testing::TemporaryFolder folder;
  const auto content = [&](const char* name) {
    std::ifstream file(folder.path() / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::filesystem::path helper = folder.path() / "lockstep-stage";
  std::ofstream(helper) << "#!/bin/sh\ncd " << folder.path().string()
                        << "\ntr '\\0' ' ' </proc/$$/cmdline >arguments\ntr '\\0' '|' >input\n";
  std::filesystem::permissions(helper, std::filesystem::perms::owner_all);
  Config config;
  config.helpers = folder.path();
  Settings settings;
  settings.sources = {"/data/secret", "/data/two words"};
  StepOnNode step = some_step();
  step.problem = "/data/secret cannot be staged";
  stage(step, config, settings, nullptr);
  EXPECT_THAT(content("arguments"),
              testing::AllOf(HasSubstr("step --cache /cache/1000"), Not(HasSubstr("/data/"))));
  EXPECT_EQ(content("input"), "/data/secret cannot be staged|/data/secret|/data/two words|");
}

TEST(Staging, OnlyAHelperThatCrashedOrWasKilledIsReplaced) {
  for (const int signal : {SIGKILL, SIGSEGV, SIGBUS, SIGABRT})
    EXPECT_TRUE(was_killed(128 + signal)) << signal;
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP})
    EXPECT_FALSE(was_killed(128 + signal)) << signal;
  EXPECT_FALSE(was_killed(1));
}

TEST(Staging, TheFoldersOfTheUsersJobsAreRecognised) {
  EXPECT_TRUE(is_data_folder("/cache/1000/jobs/7/data", 1000));
  EXPECT_TRUE(is_data_folder("/run/lockstep/links/jobs/123/1000/jobs/123/data", 1000));
  EXPECT_TRUE(is_data_folder("/my-cache/1000/jobs/123-2/data", 1000));
  for (const char* const other :
       {"", "/cache/1001/jobs/7/data", "/home/me/1000/jobs/mine/data", "/cache/1000/jobs/7/data/p",
        "/cache/1000/jobs/7-1/data/p", "/cache/1000/jobs/7-x/data", "/cache/1000/jobs//data"}) {
    EXPECT_FALSE(is_data_folder(other, 1000)) << other;
  }
  EXPECT_TRUE(is_record_folder("/run/records/1000/7.0", "/run/records", 1000));
  EXPECT_TRUE(is_record_folder("/run/records/1000/8.batch", "/run/records", 1000));
  for (const char* const other :
       {"", "/run/records/1001/7.0", "/home/records/1000/7.0", "/run/records/1000/x"})
    EXPECT_FALSE(is_record_folder(other, "/run/records", 1000)) << other;
}

TEST(Staging, AJobThatWasQueuedAgainHasAFolderOfItsOwn) {
  StepOnNode step = some_step();
  EXPECT_EQ(data_folder(step), "/cache/1000/jobs/7/data");
  EXPECT_THAT(step_arguments(step, {}, {}), testing::Not(testing::Contains("--restart")));
  step.restart = "2";
  EXPECT_EQ(data_folder(step), "/cache/1000/jobs/7-2/data");
  EXPECT_THAT(step_arguments(step, {}, {}), testing::IsSupersetOf({"--restart", "2"}));
}

}  // namespace
}  // namespace lockstep::spank
