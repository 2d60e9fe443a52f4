#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/files.h"
#include "exporters/report/report.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::report {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class JoinedTraceTest : public ::testing::Test {
 protected:
  std::filesystem::path file(int rank) const { return folder_ / fmt::format("trace-{:06}.json", rank); }

  // As runtime/profile/trace_file.h.
  void leave_trace(int rank, const std::string& events, const char* run = "7.0", int ranks = 3) const {
    write_file_atomically(
        file(rank),
        fmt::format("{{\"otherData\":{{\"run\":\"{}\",\"ranks\":{}}},\"traceEvents\":[\n{}\n]}}\n", run,
                    ranks, events));
  }

  JoinedTrace join() const { return join_traces({folder_.path()}, folder_ / "all.json"); }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    const nlohmann::json trace = nlohmann::json::parse(read_text_file(folder_ / "all.json"));
    for (const nlohmann::json& event : trace.at("traceEvents")) names.push_back(event.at("name"));
    return names;
  }

  lockstep::testing::TemporaryFolder folder_;
};

TEST_F(JoinedTraceTest, HasTheEventsOfAllRanks) {
  leave_trace(2, R"({"name":"c"})");
  leave_trace(0, "{\"name\":\"a\"},\n{\"name\":\"b\"}");
  write_file_atomically(folder_ / "rank-000000.record", "another file");
  for (int again = 0; again < 2; ++again) {  // the joined trace is not joined
    const JoinedTrace joined = join();
    EXPECT_EQ(joined.run, "7.0");
    EXPECT_EQ(joined.ranks, 2);
    EXPECT_EQ(joined.ranks_of_run, 3);
    EXPECT_THAT(names(), ElementsAre("a", "b", "c"));
  }
}

TEST_F(JoinedTraceTest, LeavesOutTracesOfAnEarlierRunOfMoreRanks) {
  for (int rank = 0; rank < 3; ++rank) leave_trace(rank, R"({"name":"late"})", "8.0");
  leave_trace(3, R"({"name":"early"})", "7.0", 4);
  std::filesystem::last_write_time(file(3),
                                   std::filesystem::last_write_time(file(0)) - std::chrono::hours(1));
  EXPECT_EQ(join().run, "8.0");
  EXPECT_THAT(names(), ElementsAre("late", "late", "late"));
}

TEST_F(JoinedTraceTest, MemoryDoesNotGrowWithTheTraces) {
  constexpr int kRanks = 3;
  constexpr std::size_t kBytes = 64 << 20;
  const auto peak_kib = [] {
    rusage usage{};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  const std::string spaces(1 << 20, ' ');  // JSON allows them around an event
  for (int rank = 0; rank < kRanks; ++rank) {
    leave_trace(rank, R"({"name":"a"})");
    const std::string trace = read_text_file(file(rank));
    std::ofstream out(file(rank));
    out << trace.substr(0, trace.find('\n') + 1);
    for (std::size_t written = 0; written < kBytes; written += spaces.size()) out << spaces;
    out << trace.substr(trace.find('\n') + 1);
  }
  const long before = peak_kib();
  EXPECT_EQ(join().ranks, kRanks);
  EXPECT_LT(peak_kib() - before, 32 << 10) << "KiB";
  EXPECT_GT(std::filesystem::file_size(folder_ / "all.json"), kRanks * kBytes);
}

TEST_F(JoinedTraceTest, ATraceThatIsNotWholeIsNamed) {
  leave_trace(0, R"({"name":"a"})");
  const std::string whole = read_text_file(file(0));
  for (const std::string& content :
       {std::string(), whole.substr(0, whole.size() - 1), whole.substr(0, 20),
        whole.substr(whole.find('\n') + 1), std::string("{\"traceEvents\":[\n]}\n")}) {
    write_file_atomically(file(0), content);
    EXPECT_THAT([&] { join(); }, ThrowsMessage<Error>(HasSubstr("trace-000000.json is not a whole trace")))
        << content;
    EXPECT_FALSE(std::filesystem::exists(folder_ / "all.json"));
  }
}

TEST_F(JoinedTraceTest, AFolderWithoutTracesIsNamed) {
  EXPECT_THAT([&] { join(); },
              ThrowsMessage<Error>(HasSubstr("no traces (trace-*.json) in " + folder_.path().string())));
  EXPECT_THAT([&] { join_traces({folder_ / "none"}, folder_ / "all.json"); },
              ThrowsMessage<Error>(HasSubstr("none: No such file or directory")));
}

}  // namespace
}  // namespace lockstep::report
