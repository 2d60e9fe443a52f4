// README's training loop is timed without a word about steps in it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "exporters/record/record.h"
#include "staging/pack/write/create.h"
#include "tests/integration/mpi_job.h"
#ifdef WITH_REPORT
#include "exporters/report/report.h"
#include "exporters/report/run.h"
#endif

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using record::Phase;
using record::Snapshot;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::SizeIs;

constexpr int kSamples = 40;
constexpr int kTokens = 10;  // of each sample

class ReadmeLoop : public ::testing::Test {
 protected:
  ReadmeLoop() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::setenv("LOCKSTEP_REPORT_DIR", records().c_str(), 1);
    fs::create_directories(records());
  }
  ~ReadmeLoop() override { ::unsetenv("LOCKSTEP_REPORT_DIR"); }

  fs::path records() const { return folder_.path() / "records"; }

  std::string make_pack() const {
    pack::CreateOptions options;
    options.folder = folder_.path() / "files";
    options.out = folder_.path() / "pack";
    options.token_bytes = 2;
    fs::create_directories(options.folder);
    for (int i = 0; i < kSamples; ++i) {
      options.files.push_back(std::to_string(100 + i));
      std::string bytes;
      for (int t = 0; t < kTokens; ++t) bytes.append({static_cast<char>(t), '\0'});
      write_file_atomically(options.folder / options.files.back(), bytes);
    }
    pack::create(options);
    return options.out.string();
  }

  // What the ranks of a job have recorded.
  std::vector<Snapshot> run(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), README_LOOP);
    const ProcessResult result = run_process(testing::mpi_command("2", arguments));
    EXPECT_EQ(result.exit_code, 0) << result.output;
    std::vector<Snapshot> ranks;
    for (const auto& entry : fs::recursive_directory_iterator(records())) {
      if (entry.path().extension() == ".record") ranks.push_back(record::Reader(entry.path()).read());
    }
    EXPECT_EQ(ranks.size(), 2);
    return ranks;
  }

  // The events of the trace that this schedule leaves, by rank.
  std::vector<std::vector<json>> profile(const char* schedule, std::vector<std::string> arguments) const {
    ::setenv("LOCKSTEP_PROFILE", schedule, 1);
    run(std::move(arguments));
    ::unsetenv("LOCKSTEP_PROFILE");
    std::vector<std::vector<json>> ranks(2);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      json trace = json::parse(read_text_file(records() / fmt::format("trace-{:06}.json", rank)));
      for (json& event : trace["traceEvents"]) {
        EXPECT_EQ(event.at("pid"), rank + 1);
        ranks[rank].push_back(std::move(event));
      }
    }
    return ranks;
  }

  static std::uint64_t ns(const Snapshot& rank, Phase phase) {
    return rank.counters.phase_ns[record::index(phase)];
  }

  const testing::MpiMemory memory_;
  testing::TemporaryFolder folder_;
};

TEST_F(ReadmeLoop, ShowsItsStepsPhasesAndTokensWithOurLoader) {
  std::uint64_t tokens = 0;
  std::uint64_t samples = 0;
  const auto ranks = run({"loader", make_pack()});
  for (const Snapshot& rank : ranks) {
    tokens += rank.counters.tokens;
    samples += rank.counters.samples;
    EXPECT_EQ(rank.counters.steps, ranks.front().counters.steps);
    EXPECT_GT(rank.counters.steps, 1);
    EXPECT_GT(ns(rank, Phase::forward), 0);
    EXPECT_GT(ns(rank, Phase::backward), 0);
    EXPECT_GT(ns(rank, Phase::comm_exposed), 0);
  }
  EXPECT_EQ(tokens, kSamples * kTokens);
  EXPECT_EQ(samples, kSamples);
}

TEST_F(ReadmeLoop, ShowsItsStepsPhasesAndTokensWithOtherBatches) {
  for (const Snapshot& rank : run({"own"})) {
    EXPECT_EQ(rank.counters.steps, 3);
    EXPECT_EQ(rank.counters.tokens, 60);
    EXPECT_GT(ns(rank, Phase::forward), 0);
    EXPECT_GT(ns(rank, Phase::backward), 0);
    EXPECT_GT(ns(rank, Phase::comm_exposed), 0);
  }
}

struct Slice {
  std::string name;
  double begin = 0;
  double end = 0;

  bool within(const Slice& other) const { return begin >= other.begin && end <= other.end; }
};

// Nanoseconds are exact in the trace, but a double has some 0.1 ns at a time of a few days.
constexpr double kRounding = 1e-3;

// The complete slices of a rank with this category, by track.
std::map<int, std::vector<Slice>> slices(const std::vector<json>& rank, std::string_view category) {
  std::map<int, std::vector<Slice>> tracks;
  for (const json& event : rank) {
    if (event["ph"] != "X" || event["cat"] != category) continue;
    const double begin = event["ts"].get<double>();
    tracks[event["tid"].get<int>()].push_back(
        {event["name"].get<std::string>(), begin, begin + event["dur"].get<double>()});
  }
  return tracks;
}

std::vector<Slice> only_track(const std::map<int, std::vector<Slice>>& tracks) {
  EXPECT_THAT(tracks, SizeIs(1));
  return tracks.empty() ? std::vector<Slice>() : tracks.begin()->second;
}

// Of Perfetto's rules: slices of a track nest, so one that begins within another one ends within it.
void expect_nested(std::vector<Slice> track) {
  std::stable_sort(track.begin(), track.end(), [](const Slice& left, const Slice& right) {
    return std::make_pair(left.begin, right.end) < std::make_pair(right.begin, left.end);
  });
  std::vector<Slice> open;
  for (const Slice& slice : track) {
    while (!open.empty() && open.back().end <= slice.begin + kRounding) open.pop_back();
    if (!open.empty()) {
      EXPECT_LE(slice.end, open.back().end + kRounding) << slice.name << " in " << open.back().name;
    }
    open.push_back(slice);
  }
}

// Whether a slice with this name lies within one with the other name.
bool is_within(const std::vector<Slice>& inner, std::string_view name, const std::vector<Slice>& outer,
               std::string_view outer_name) {
  return std::any_of(inner.begin(), inner.end(), [&](const Slice& slice) {
    return slice.name == name && std::any_of(outer.begin(), outer.end(), [&](const Slice& around) {
             return around.name == outer_name && slice.within(around);
           });
  });
}

// The collective operations of a rank by name. Each one is a pair of events, which may have a wait within.
std::map<std::string, Slice> collectives(const std::vector<json>& rank) {
  std::map<std::string, Slice> found;
  std::map<std::string, std::vector<std::string>> open;  // by id
  for (const json& event : rank) {
    if (event["ph"] != "b" && event["ph"] != "e") continue;
    std::vector<std::string>& names = open[event.at("id").get<std::string>()];
    const auto name = event["name"].get<std::string>();
    if (event["ph"] == "b") {
      names.push_back(name);
      found[name].begin = event["ts"].get<double>();
    } else {
      EXPECT_EQ(names.back(), name);
      names.pop_back();
      found[name].end = event["ts"].get<double>();
    }
  }
  for (const auto& [id, names] : open) EXPECT_THAT(names, SizeIs(0)) << id;
  return found;
}

std::vector<std::string> names_of(const std::vector<Slice>& slices) {
  std::vector<std::string> names;
  names.reserve(slices.size());
  for (const Slice& slice : slices) names.push_back(slice.name);
  return names;
}

TEST_F(ReadmeLoop, IsProfiledByTheEnvironment) {
  const auto ranks = profile("wait:1,active:1", {"own"});
  for (const auto& rank : ranks) {
    const auto operators = slices(rank, "operator");
    const auto phases = only_track(slices(rank, "phase"));
    const auto steps = only_track(slices(rank, "step"));
    EXPECT_THAT(names_of(steps), ElementsAre("step 2"));
    EXPECT_THAT(names_of(phases), IsSupersetOf({"forward", "backward", "comm_exposed"}));
    expect_nested(phases);
    bool forward = false;
    for (const auto& [track, of_thread] : operators) {
      expect_nested(of_thread);
      forward = forward || (is_within(of_thread, "aten::index_select", of_thread, "aten::embedding") &&
                            is_within(of_thread, "aten::embedding", phases, "forward"));
    }
    EXPECT_TRUE(forward) << "aten::index_select in aten::embedding in the phase forward";
    EXPECT_TRUE(std::any_of(rank.begin(), rank.end(), [](const json& event) {
      return event["ph"] == "C" && event["args"]["MiB"].get<double>() > 1;
    })) << "memory";
  }
  // No rank leaves a reduction before all have entered it.
  const auto first = collectives(ranks[0]);
  const auto second = collectives(ranks[1]);
  int reductions = 0;
  for (const auto& [name, slice] : first) {
    if (!name.starts_with("all_reduce of bucket")) continue;
    ++reductions;
    ASSERT_TRUE(second.contains(name)) << name;
    EXPECT_LT(std::max(slice.begin, second.at(name).begin), std::min(slice.end, second.at(name).end)) << name;
  }
  EXPECT_GT(reductions, 0);
  EXPECT_THAT(read_text_file(records() / "operators.txt"),
              AllOf(HasSubstr("aten::addmm"), HasSubstr("aten::embedding")));
#ifdef WITH_REPORT
  // The report has the ten operators that took longest, and which these are depends on the machine's load.
  const auto run = report::load({records()});
  EXPECT_THAT(report::to_text(run),
              AllOf(HasSubstr("profile of rank 0"), HasSubstr("  aten::"), HasSubstr("forward  backward"),
                    ContainsRegex("\n[^\n]* embedding\n"), ContainsRegex("\n[^\n]* linear\n")));
  const auto joined = report::join_traces({records()}, folder_ / "all.json");
  EXPECT_EQ(joined.ranks, 2);
  EXPECT_EQ(joined.ranks_of_run, 2);
  EXPECT_EQ(json::parse(read_text_file(folder_ / "all.json"))["traceEvents"].size(),
            ranks[0].size() + ranks[1].size());
#endif
}

TEST_F(ReadmeLoop, ShowsTheLoadersThreadsInAProfileThatEndsWithTheJob) {
  for (const auto& rank : profile("active:1000", {"loader", make_pack()})) {
    EXPECT_THAT(names_of(only_track(slices(rank, "step"))), SizeIs(::testing::Gt(1)));
    const auto batches = slices(rank, "loader");
    ASSERT_FALSE(batches.empty());
    for (const auto& [thread, built] : batches) {
      expect_nested(built);
      const auto name = std::find_if(rank.begin(), rank.end(), [&](const json& event) {
        return event["ph"] == "M" && event["name"] == "thread_name" && event["tid"] == thread;
      });
      ASSERT_NE(name, rank.end());
      EXPECT_THAT((*name)["args"]["name"].get<std::string>(), HasSubstr("lockstep-data"));
    }
  }
}

TEST_F(ReadmeLoop, EndsAfterTheProfiledStepsIfTheScheduleSaysSo) {
  ::setenv("LOCKSTEP_PROFILE", "wait:1,active:1,stop", 1);
  const auto ranks = run({"loader", make_pack()});
  ::unsetenv("LOCKSTEP_PROFILE");
  for (const Snapshot& rank : ranks) {
    EXPECT_EQ(rank.counters.steps, 2);
    EXPECT_NE(rank.finished_unix_ns, 0);
  }
  for (const char* const trace : {"trace-000000.json", "trace-000001.json"})
    EXPECT_TRUE(fs::exists(records() / trace)) << trace;
}

TEST_F(ReadmeLoop, SaysAtItsEndWhereTheTimeWent) {
  const ProcessResult result = run_process(testing::mpi_command("2", {README_LOOP, "own"}));
  const std::string_view sign = "lockstep: goodput of rank 0 in 3 steps: ";
  const std::size_t place = result.error.find(sign);
  ASSERT_NE(place, std::string::npos) << result.error;
  EXPECT_EQ(result.error.find(sign, place + 1), std::string::npos) << "one line:\n" << result.error;
}

TEST_F(ReadmeLoop, DoesNotStartWithABadSchedule) {
  ::setenv("LOCKSTEP_PROFILE", "active:0", 1);
  const ProcessResult result = run_process(testing::mpi_command("2", {README_LOOP, "own"}));
  ::unsetenv("LOCKSTEP_PROFILE");
  EXPECT_NE(result.exit_code, 0);
  const std::string_view sign = "LOCKSTEP_PROFILE: ";
  const std::size_t place = result.error.find(sign);
  ASSERT_NE(place, std::string::npos) << result.error;
  EXPECT_EQ(result.error.find(sign, place + 1), std::string::npos) << "one line:\n" << result.error;
}

}  // namespace
}  // namespace lockstep
