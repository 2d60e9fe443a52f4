#include "plugin/spank/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(std::string_view text) {
  try {
    parse_config(text, "/etc/l.conf", "");
  } catch (const Refusal& refused) {
    return refused.what();
  }
  return "";
}

TEST(Config, ReadsTheKeys) {
  const Config config = parse_config(
      "# a comment\n\n cache = /mnt/local/x \nsources=/a, /b/c\nhelpers = /opt/bin\nports = 20000-20010\n"
      "prefix = ls-\ncheck_sources = no\nwait = 5\npin = auto,smt=1\nstage_verify = full\r\n; another",
      "f", "");
  EXPECT_EQ(config.cache, "/mnt/local/x");
  EXPECT_THAT(config.sources, ElementsAre("/a", "/b/c"));
  EXPECT_EQ(config.helpers, "/opt/bin");
  EXPECT_EQ(config.first_port, 20000);
  EXPECT_EQ(config.last_port, 20010);
  EXPECT_EQ(config.prefix, "ls-");
  EXPECT_FALSE(config.check_sources);
  EXPECT_EQ(config.wait, 5);
  EXPECT_EQ(config.defaults.at(static_cast<std::size_t>(Option::pin)), "auto,smt=1");
  EXPECT_EQ(config.defaults.at(static_cast<std::size_t>(Option::stage_verify)), "full");
  EXPECT_TRUE(config.enabled);
}

TEST(Config, APartitionsSectionOverridesAndOthersDoNot) {
  constexpr std::string_view kText =
      "cache = /a\nenabled = yes\n[gpu]\ncache = /b\nenabled = no\n[ big mem ]\ncache = /c\n";
  EXPECT_EQ(parse_config(kText, "f", "").cache, "/a");
  EXPECT_EQ(parse_config(kText, "f", "gpu").cache, "/b");
  EXPECT_FALSE(parse_config(kText, "f", "gpu").enabled);
  EXPECT_EQ(parse_config(kText, "f", "big mem").cache, "/c");
  EXPECT_TRUE(parse_config(kText, "f", "other").enabled);
  EXPECT_THAT(parse_config(kText, "f", "").caches, ElementsAre("/a", "/b", "/c"));
}

TEST(Config, MistakesAreNamedWithTheirLine) {
  EXPECT_EQ(refusal("cache = /a\ncahe = /b\n"), "/etc/l.conf:2: unknown key 'cahe'");
  EXPECT_EQ(refusal("[gpu]\nwait = soon\n"), "/etc/l.conf:2: 'wait' wants a number from 1 to 86400");
  EXPECT_EQ(refusal("cache = mnt\n"), "/etc/l.conf:1: 'cache' wants an absolute path");
  EXPECT_EQ(refusal("enabled\n"), "/etc/l.conf:1: not a 'key = value' line");
  EXPECT_THAT(refusal("enabled = maybe"), HasSubstr("wants yes or no"));
  EXPECT_THAT(refusal("ports = 30-20"), HasSubstr("'ports' wants a number"));
  EXPECT_THAT(refusal("ports = 20000-19000"), HasSubstr("'ports' wants a number"));
  EXPECT_THAT(refusal("prefix = A b"), HasSubstr("small letters"));
  EXPECT_THAT(refusal("[gpu\n"), HasSubstr("']'"));
  EXPECT_THAT(refusal("stage_tier = ram"), HasSubstr("not supported by this version"));
  EXPECT_THAT(refusal("quota = 10G"), HasSubstr("not supported by this version"));
  EXPECT_THAT(refusal("[gpu]\nprefix = x-\n"), HasSubstr("holds for all partitions"));
}

TEST(Config, AMissingFileIsNamed) {
  try {
    read_config("/nonexistent/l.conf", "");
    FAIL();
  } catch (const Refusal& refused) {
    EXPECT_STREQ(refused.what(), "cannot read /nonexistent/l.conf: No such file or directory");
  }
}

}  // namespace
}  // namespace lockstep::spank
