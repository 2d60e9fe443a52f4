#include "common/leaf/options/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/message_of.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(std::string_view text) {
  return message_of([&] { parse_config(text, "/etc/l.conf", ""); });
}

TEST(Config, ReadsTheKeys) {
  const Config config = parse_config(
      "# a comment\n\n cache = /mnt/local/x \nsources=/a, /b/c\nhelpers = /opt/bin\nports = 20000-20010\n"
      "prefix = ls-\ncheck_sources = no\nsource_patience = 30\nwait = 5\npin = auto,smt=1\nstage_verify = full\r\n; another",
      "f", "");
  EXPECT_EQ(config.cache, "/mnt/local/x");
  EXPECT_THAT(config.sources, ElementsAre("/a", "/b/c"));
  EXPECT_EQ(config.helpers, "/opt/bin");
  EXPECT_EQ(config.first_port, 20000);
  EXPECT_EQ(config.last_port, 20010);
  EXPECT_EQ(config.prefix, "ls-");
  EXPECT_FALSE(config.check_sources);
  EXPECT_EQ(config.source_patience, 30);
  EXPECT_EQ(config.wait, 5);
  EXPECT_EQ(config.defaults.at(static_cast<std::size_t>(Option::pin)), "auto,smt=1");
  EXPECT_EQ(config.defaults.at(static_cast<std::size_t>(Option::stage_verify)), "full");
  EXPECT_TRUE(config.enabled);
}

std::string text_of(const char* file) {
  const std::ifstream stream(std::string(LOCKSTEP_SOURCE) + file);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(Config, InstalledSampleHasEveryKeyOfTheDocumentation) {
  const std::string sample = text_of("plugin/spank/options/lockstep.conf.in");
  const std::string pages = text_of("docs/admins/configuration.md");
  const std::regex row(R"(\n\| `([a-z_]+)` \|)");
  int keys = 0;
  for (std::sregex_iterator it(pages.begin(), pages.end(), row), end; it != end; ++it, ++keys) {
    EXPECT_TRUE(std::regex_search(sample, std::regex("\n#?" + (*it)[1].str() + " = "))) << (*it)[1];
  }
  EXPECT_GT(keys, 15);
  // Every line that is commented out is valid too.
  const std::string all = std::regex_replace(sample, std::regex(R"(\n#([a-z_\[]))"), "\n$1");
  EXPECT_EQ(error_of(std::regex_replace(all, std::regex("@CMAKE_INSTALL_PREFIX@"), "/usr")), "");
  EXPECT_EQ(parse_config(std::regex_replace(all, std::regex("@.*@"), "/usr"), "f", "").cache,
            "/local/lockstep");
}

TEST(Config, OnlyTheJobsPartitionsSectionOverrides) {
  constexpr std::string_view kText =
      "cache = /a\nenabled = yes\n[gpu]\ncache = /b\nenabled = no\n[ big mem ]\ncache = /c\n";
  EXPECT_EQ(parse_config(kText, "f", "").cache, "/a");
  EXPECT_EQ(parse_config(kText, "f", "gpu").cache, "/b");
  EXPECT_FALSE(parse_config(kText, "f", "gpu").enabled);
  EXPECT_EQ(parse_config(kText, "f", "big mem").cache, "/c");
  EXPECT_TRUE(parse_config(kText, "f", "other").enabled);
  EXPECT_THAT(parse_config(kText, "f", "").caches, ElementsAre("/a", "/b", "/c"));
  EXPECT_THAT(parse_config("[gpu]\nlinks = /l\n", "f", "").all_links,
              ElementsAre("/run/lockstep/links", "/l"));
}

TEST(Config, ReadsSizesAsSlurmWritesThem) {
  const Config config = parse_config(
      "total = 2T\nmin_free = 3G\nquota = 500G\nram = 8M\nbandwidth = 12345\nkeep = 0\ncooperate = no\nshared = /a/shared\n"
      "ram_cache = /run/ram\n",
      "f", "");
  EXPECT_EQ(config.total, std::uint64_t{2} << 40U);
  EXPECT_EQ(config.min_free, std::uint64_t{3} << 30U);
  EXPECT_EQ(config.quota, std::uint64_t{500} << 30U);
  EXPECT_EQ(config.ram, std::uint64_t{8} << 20U);
  EXPECT_EQ(config.bandwidth, 12345U);
  EXPECT_EQ(config.keep, 0);
  EXPECT_FALSE(config.cooperate);
  EXPECT_EQ(config.shared, "/a/shared");
  EXPECT_EQ(config.ram_cache, "/run/ram");
}

TEST(Config, GcGetsTheWidestLimitsOfEachCache) {
  const lockstep::testing::TemporaryFolder folder;
  const std::string file = folder / "lockstep.conf";
  std::ofstream(file)
      << "cache = /a\nquota = 1G\ntotal = 4G\nreserve = 1G\n[gpu]\nquota = 2G\nram = 3G\n[big]\n"
         "cache = /b\ntotal = 0\n";
  ::chmod(file.c_str(), 0600);
  const std::vector<CacheLimits> limits = cache_limits(file);
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30U;
  ASSERT_EQ(limits.size(), 3U);
  EXPECT_EQ(limits[0].cache, "/a");
  EXPECT_EQ(limits[0].quota, 2 * kGiB);
  EXPECT_EQ(limits[0].total, 4 * kGiB);
  EXPECT_EQ(limits[0].reserve, kGiB);
  EXPECT_EQ(limits[0].keep, 600);
  EXPECT_EQ(limits[1].cache, "/dev/shm/lockstep");
  EXPECT_EQ(limits[1].quota, 3 * kGiB);
  EXPECT_EQ(limits[1].total, 0U);
  EXPECT_EQ(limits[2].cache, "/b");
  EXPECT_EQ(limits[2].quota, kGiB);
  EXPECT_EQ(limits[2].total, 0U);
}

TEST(Config, ByDefaultThereAreNoLimitsAndNoRamTier) {
  const Config config = parse_config("cache = /a\n", "f", "");
  EXPECT_EQ(config.total, 0U);
  EXPECT_EQ(config.quota, 0U);
  EXPECT_EQ(config.ram, 0U);
  EXPECT_FALSE(config.ram_somewhere);
  EXPECT_EQ(config.keep, 600);
  EXPECT_TRUE(config.cooperate);
}

TEST(Config, TheStoresOfBothTiersOfAllPartitionsAreKnown) {
  const Config config =
      parse_config("cache = /a\n[gpu]\nram = 1G\n[big]\nram_cache = /r\ncache = /b\n", "f", "");
  EXPECT_THAT(config.caches, ElementsAre("/a", "/dev/shm/lockstep", "/r", "/b"));
  EXPECT_TRUE(config.ram_somewhere);
  EXPECT_EQ(config.ram, 0U);
}

std::string not_allowed(std::string_view text, std::string_view partition, Option option,
                        std::string_view value) {
  Settings settings;
  apply(option, value, settings);
  return message_of(
      [&] { check_allowed(parse_config(text, "f", partition), option, settings, !partition.empty()); });
}

TEST(Config, LimitsApplyToTheOptionsOfTheJobsPartition) {
  constexpr std::string_view kText =
      "allow_stage_mode = block\nallow_pin = auto, off\n[gpu]\nallow_pin = core\n";
  EXPECT_EQ(not_allowed(kText, "cpu", Option::stage_mode, "background"),
            "--stage-mode=background is not allowed here; the administrator allows: block");
  EXPECT_EQ(not_allowed(kText, "cpu", Option::stage_mode, "block"), "");
  EXPECT_EQ(not_allowed(kText, "cpu", Option::stage_tier, "ram"), "");
  EXPECT_EQ(not_allowed(kText, "cpu", Option::pin, "auto,workers=2"), "");
  EXPECT_EQ(not_allowed(kText, "cpu", Option::pin, "core"),
            "--pin=core is not allowed here; the administrator allows: auto, off");
  EXPECT_EQ(not_allowed(kText, "gpu", Option::pin, "core"), "");
  EXPECT_NE(not_allowed(kText, "gpu", Option::pin, "auto"), "");
}

TEST(Config, WithoutAKnownPartitionTheLimitsOfAllPartitionsApplyTogether) {
  constexpr std::string_view kText =
      "allow_pin = auto, off\n[gpu]\nallow_pin = core\nallow_stage_mode = block\n";
  EXPECT_EQ(not_allowed(kText, "", Option::pin, "core"), "");
  EXPECT_EQ(not_allowed(kText, "", Option::pin, "numa"),
            "--pin=numa is not allowed here; the administrator allows: auto, off, core");
  EXPECT_EQ(not_allowed(kText, "", Option::stage_mode, "background"), "");
}

TEST(Config, MistakesAreReportedWithTheirLine) {
  EXPECT_EQ(error_of("cache = /a\ncahe = /b\n"), "/etc/l.conf:2: unknown key 'cahe'");
  EXPECT_EQ(error_of("[gpu]\nwait = soon\n"), "/etc/l.conf:2: 'wait' must be a number from 1 to 86400");
  EXPECT_EQ(error_of("cache = mnt\n"), "/etc/l.conf:1: 'cache' must be an absolute path");
  EXPECT_EQ(error_of("enabled\n"), "/etc/l.conf:1: not a 'key = value' line");
  EXPECT_THAT(error_of("enabled = maybe"), HasSubstr("must be yes or no"));
  EXPECT_THAT(error_of("peer_network = 10.1.0.0/16, 10.2"), HasSubstr("must be a network such as"));
  EXPECT_THAT(error_of("ports = 30-20"), HasSubstr("'ports' must be a number"));
  EXPECT_THAT(error_of("ports = 20000-19000"), HasSubstr("'ports' must be a number"));
  EXPECT_THAT(error_of("prefix = A b"), HasSubstr("lower-case letters"));
  EXPECT_THAT(error_of("[gpu\n"), HasSubstr("']'"));
  EXPECT_EQ(error_of("quota = 10X\n"), "/etc/l.conf:1: 'quota' must be a size such as 500G");
  for (const char* size :
       {"", "G", "-1", "1.5G", "10 G", "10GG", "0x10", "18446744073709551616", "16777216T"}) {
    EXPECT_THAT(error_of(std::string("total = ") + size), HasSubstr("must be a size")) << size;
  }
  EXPECT_EQ(error_of("allow_stage_tier = disk, tape"),
            "/etc/l.conf:1: 'tape' is not a value of --stage-tier");
  EXPECT_THAT(error_of("allow_stage = none"), HasSubstr("unknown key"));
  EXPECT_THAT(error_of("[gpu]\nprefix = x-\n"), HasSubstr("applies to all partitions"));
}

TEST(Config, AFileThatOthersOwnOrMayWriteIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  std::string path = "/tmp/config_test.XXXXXX";
  const int fd = ::mkstemp(path.data());
  const std::string text = "keep = 7\nprefix = ls-\n";
  ASSERT_EQ(::write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  const auto refused = [&](uid_t owner, mode_t mode) {
    EXPECT_TRUE(::fchown(fd, owner, 0) == 0 && ::fchmod(fd, mode) == 0);
    return message_of([&] { read_config(path, ""); });
  };
  EXPECT_EQ(refused(0, 0644), "");
  for (const auto& [owner, mode] : std::vector<std::pair<uid_t, mode_t>>{{1, 0644}, {0, 0664}, {0, 0646}}) {
    EXPECT_THAT(refused(owner, mode), HasSubstr(path + " must belong to root and be writable by root alone"));
    EXPECT_EQ(prefix_of_refused(path), "ls-");
  }
  ::close(fd);
  ASSERT_TRUE(::unlink(path.c_str()) == 0 && ::mkfifo(path.c_str(), 0644) == 0);
  EXPECT_EQ(message_of([&] { read_config(path, ""); }), "cannot read " + path + ": it is not a regular file");
  ::unlink(path.c_str());
}

TEST(Config, AMissingFileIsNamed) {
  EXPECT_THAT(message_of([] { read_config("/nonexistent/l.conf", ""); }),
              HasSubstr("/nonexistent/l.conf: No such file"));
}

}  // namespace
}  // namespace lockstep
