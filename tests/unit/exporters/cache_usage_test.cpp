#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "common/files.h"
#include "exporters/node/collector.h"
#include "tests/unit/exporters/parsed_page.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::exporter {
namespace {

using lockstep::testing::ParsedPage;

class CacheTest : public ::testing::Test {
 protected:
  static constexpr const char* kUsage =
      R"({"version":1,"written":1700000000,"users":[{"user":"alice","bytes":500,"objects":2},)"
      R"({"user":"a\"b\\c\nd","bytes":3,"objects":1},{"user":"a\"b\\c\nd","bytes":4,"objects":1}],"total":600,"shared":93})";

  void write_usage(const std::string& text) const { write_file_atomically(cache_ / "usage.json", text); }

  lockstep::testing::TemporaryFolder cache_;
};

TEST_F(CacheTest, ServesWhatGcMeasured) {
  write_usage(kUsage);
  Collector collector({.records = cache_ / "records", .cache = cache_.path(), .node = "n1", .limits = {}});
  const std::string text = collector.page();
  const ParsedPage page = lockstep::testing::parse_page(text);
  EXPECT_EQ(page.wrong, std::vector<std::string>());
  EXPECT_EQ(page.value("lockstep_cache_bytes"), 600);
  EXPECT_EQ(page.value("lockstep_cache_shared_bytes"), 93);
  EXPECT_EQ(page.value("lockstep_cache_measured_timestamp_seconds"), 1'700'000'000);
  EXPECT_EQ(page.value("lockstep_cache_user_bytes", "user_name", "alice"), 500);
  EXPECT_EQ(page.value("lockstep_cache_user_objects", "user_name", "alice"), 2);
  EXPECT_GT(page.value("lockstep_cache_filesystem_size_bytes"), 0);
  EXPECT_THAT(text, ::testing::HasSubstr(R"(user_name="a\"b\\c\nd"} 7)"));
}

TEST_F(CacheTest, AFileThatIsNotGcsIsCountedOncePerLookUp) {
  CacheUsageMeter meter(cache_.path(), std::chrono::seconds(30));
  auto now = std::chrono::steady_clock::now();
  EXPECT_FALSE(meter.usage(now).bytes.has_value()) << "gc has not run yet";
  EXPECT_EQ(meter.errors(), 0);
  std::uint64_t errors = 0;
  const auto refuses = [&](const char* why) {
    now += std::chrono::seconds(30);
    EXPECT_FALSE(meter.usage(now).bytes.has_value()) << why;
    EXPECT_EQ(meter.errors(), ++errors) << why;
    EXPECT_FALSE(meter.usage(now + std::chrono::seconds(29)).bytes.has_value());
    EXPECT_EQ(meter.errors(), errors) << "not counted in each scrape";
    EXPECT_THAT(meter.error(), ::testing::HasSubstr(why));
  };
  write_usage("{");
  refuses("is not what lockstep-stage gc writes");
  write_usage(R"({"version":2,"written":1,"users":[],"total":1,"shared":1})");
  refuses("version 2");
  write_usage(R"({"version":1,"written":1,"users":[{"user":"a","bytes":1}],"total":1,"shared":1})");
  refuses("objects");
  write_file_atomically(cache_ / "other", kUsage);
  std::filesystem::remove(cache_ / "usage.json");
  std::filesystem::create_symlink("other", cache_ / "usage.json");
  refuses("cannot open");
  std::filesystem::remove(cache_ / "usage.json");
  if (::geteuid() == 0) {
    write_usage(kUsage);
    ASSERT_EQ(::chown((cache_ / "usage.json").c_str(), 1000, 1000), 0);
    refuses("is not a file of root");
    std::filesystem::remove(cache_ / "usage.json");
  }
  write_usage(kUsage);
  EXPECT_EQ(meter.usage(now + std::chrono::seconds(30)).bytes, 600);
  EXPECT_EQ(meter.error(), "");
}

TEST_F(CacheTest, AMissingCacheHasNoValues) {
  CacheUsageMeter watcher(cache_ / "none", std::chrono::seconds(30));
  EXPECT_FALSE(watcher.usage(std::chrono::steady_clock::now()).file_system_bytes.has_value());
}

}  // namespace
}  // namespace lockstep::exporter
