// README's training loop is timed without a word about steps in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "exporters/record/reader.h"
#include "staging/pack/write/create.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using record::Phase;
using record::Snapshot;

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
      if (entry.is_regular_file()) ranks.push_back(record::Reader(entry.path()).read());
    }
    EXPECT_EQ(ranks.size(), 2);
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

}  // namespace
}  // namespace lockstep
