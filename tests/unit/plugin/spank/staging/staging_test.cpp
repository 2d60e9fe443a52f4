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

transfer::StepRequest request(const StepOnNode& step, const Config& config, const Settings& settings) {
  return request_for(step, config, settings, nullptr);
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
  transfer::StepRequest plain;
  plain.job = 7;
  plain.step = "0";
  plain.node = "n1";
  plain.store = "/cache/1000";
  EXPECT_EQ(to_text(request(some_step(), {}, {})), to_text(plain));
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
  const nlohmann::json all = request(step, config, settings);
  const nlohmann::json expected{{"mode", 1},           {"on_error", 1},
                                {"verify", "full"},    {"quota", 1000},
                                {"min_free", 5000},    {"keep", 0},
                                {"bandwidth", 77},     {"shared", "/cache/shared"},
                                {"lease", step.lease}, {"source_patience", 30},
                                {"watch_fd", 3},       {"cpus", "2-3"},
                                {"cooperate", false},  {"first_port", 20000},
                                {"last_port", 20010},  {"peer_networks", config.peer_networks}};
  for (const auto& [key, value] : expected.items()) EXPECT_EQ(all.at(key), value) << key;
}

TEST(Staging, TheAddressAndTheKeyOfSrunArePassedToStepsOfSeveralNodes) {
  StepOnNode step = some_step();
  step.srun_hosts = {"10.0.0.1"};
  SrunLink link{.port = 4000, .key = "secret", .host = "login", .folder = "/home"};
  EXPECT_EQ(request_for(step, {}, {}, &link).srun_port, 0) << "one node needs no rendezvous";
  step.nodes = 2;
  const transfer::StepRequest asked = request_for(step, {}, {}, &link);
  EXPECT_EQ(asked.srun_port, 4000);
  EXPECT_EQ(asked.key, "secret");
  EXPECT_THAT(asked.srun_hosts, testing::ElementsAre("10.0.0.1", "login"));
}

TEST(Staging, EachNodeOfAStepMayReadAnEqualShareOfTheSourceBandwidth) {
  Config config;
  config.source_bandwidth = 1000;
  StepOnNode step = some_step();
  step.nodes = 4;
  EXPECT_EQ(request(step, config, {}).bandwidth, 250U);
  config.bandwidth = 77;
  EXPECT_EQ(request(step, config, {}).bandwidth, 77U);
  step.nodes = 5000;
  EXPECT_EQ(request(step, config, {}).bandwidth, 1U) << "0 would mean no limit";
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
  const transfer::StepRequest asked = request(some_step(), config, settings);
  EXPECT_EQ(asked.quota, 10U);
  EXPECT_EQ(asked.min_free, 0U);
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
TEST(Staging, NothingOfTheRequestIsOnTheHelpersCommandLineOrInItsEnvironment) {
  const testing::TemporaryFolder folder;
  const auto content = [&](const char* name) {
    std::ifstream file(folder.path() / name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::filesystem::path helper = folder.path() / "lockstep-stage";
  std::ofstream(helper) << "#!/bin/sh\ncd " << folder.path().string()
                        << "\ntr '\\0' ' ' </proc/$$/cmdline >arguments\nenv >environment\ncat >input\n";
  std::filesystem::permissions(helper, std::filesystem::perms::owner_all);
  Config config;
  config.helpers = folder.path();
  Settings settings;
  settings.sources = {"/data/secret", "/data/two words\xFF"};
  StepOnNode step = some_step();
  step.nodes = 2;
  step.problem = "/data/secret cannot be staged";
  const SrunLink link{.port = 4000, .key = "one-time", .host = "login", .folder = "/home"};
  stage(step, config, settings, &link);
  EXPECT_THAT(content("arguments"), testing::EndsWith("/lockstep-stage step "));
  EXPECT_THAT(content("environment"), Not(HasSubstr("one-time")));
  const auto read = parse_any_bytes(content("input")).get<transfer::StepRequest>();
  EXPECT_EQ(read.problem, step.problem);
  EXPECT_EQ(read.sources, settings.sources);
  EXPECT_EQ(read.key, "one-time");
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
  step.restart = 2;
  EXPECT_EQ(data_folder(step), "/cache/1000/jobs/7-2/data");
  EXPECT_EQ(request(step, {}, {}).restart, 2U);
}

}  // namespace
}  // namespace lockstep::spank
