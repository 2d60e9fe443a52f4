// The example program as a user starts it: it learns, the same on any number of ranks, and bad data ends it
// with one line.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "common/process.h"
#include "staging/pack/create.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class TextLm : public ::testing::Test {
 protected:
  TextLm() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::unsetenv("LOCKSTEP_DATA");
    // Sequences that count upwards from anywhere: the next token is certain once that is learned.
    make_pack("train", 60, 50, 2);
    make_pack("heldout", 10, 50, 2);
  }
  ~TextLm() override { fs::remove_all(folder_); }

  void make_pack(const std::string& name, int samples, int vocabulary, int token_bytes) const {
    const fs::path files = folder_ / (name + "-files");
    fs::create_directories(files);
    pack::CreateOptions options;
    for (int i = 0; i < samples; ++i) {
      std::string bytes;
      const int length = 5 + i * 7 % 40;
      for (int t = 0; t < length; ++t) {
        bytes += static_cast<char>((3 * i + t) % vocabulary);
        bytes.append(1, '\0');
      }
      options.files.push_back(fmt::format("s{:03}.tokens", i));
      write_file_atomically(files / options.files.back(), bytes);
    }
    options.folder = files;
    options.out = folder_ / name;
    options.token_bytes = token_bytes;
    pack::create(options);
  }

  ProcessResult run(int ranks, const std::string& train, std::vector<std::string> more = {}) const {
    std::vector<std::string> command = {
        MPIEXEC, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-np", std::to_string(ranks)};
    for (const auto& argument :
         {std::string(TEXT_LM), std::string("--data"), (folder_ / train).string(), std::string("--heldout"),
          (folder_ / "heldout").string(), std::string("--vocabulary=50"), std::string("--width=16"),
          std::string("--layers=1"), std::string("--heads=2"), std::string("--warm-up=2")}) {
      command.push_back(argument);
    }
    command.insert(command.end(), more.begin(), more.end());
    return run_process(command);
  }

  static int lines(const std::string& text, const std::string& with) {
    int count = 0;
    for (auto at = text.find(with); at != std::string::npos; at = text.find(with, at + 1)) ++count;
    return count;
  }

  fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("text_lm_test.{}", ::getpid());
};

TEST_F(TextLm, LearnsAndSaysHowWell) {
  const auto result = run(2, "train", {"--cap=50", "--epochs=12"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("perplexity before training: "));
  EXPECT_THAT(result.output, HasSubstr("perplexity after training: "));
  EXPECT_THAT(result.output, HasSubstr(" tokens/s"));
  EXPECT_THAT(result.output, HasSubstr("lockstep-report "));

  const auto measured = run(2, "train", {"--cap=50", "--epochs=12", "--json"});
  const auto json = nlohmann::json::parse(measured.output);
  EXPECT_NEAR(json["perplexity_before"].get<double>(), 50, 10);
  EXPECT_LT(json["perplexity_after"].get<double>(), 10);
  EXPECT_EQ(json["ranks"], 2);
}

TEST_F(TextLm, HeldOutPagesMeasureTheSameOnAnyNumberOfRanks) {
  std::vector<double> before;
  for (const int ranks : {1, 3}) {
    const auto json = nlohmann::json::parse(run(ranks, "train", {"--cap=50", "--steps=1", "--json"}).output);
    before.push_back(json["perplexity_before"].get<double>());
  }
  EXPECT_NEAR(before[0], before[1], 1e-4 * before[0]);
}

TEST_F(TextLm, EveryTokenIsTrainedOnOnceInAnEpoch) {
  const auto json =
      nlohmann::json::parse(run(3, "train", {"--cap=50", "--epochs=1", "--accumulate=2", "--json"}).output);
  std::int64_t tokens = 0;
  for (int i = 0; i < 60; ++i) tokens += 5 + i * 7 % 40;
  EXPECT_EQ(json["tokens"], tokens);
}

TEST_F(TextLm, MissingDataEndsItWithOneLine) {
  const auto result = run(2, "nowhere");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "nowhere"), 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr("text_lm: rank 0 on "));
  EXPECT_THAT(result.output, Not(HasSubstr("perplexity")));
}

TEST_F(TextLm, DataThatIsNotPackedEndsItWithOneLine) {
  const auto result = run(2, "train-files");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "train-files"), 1) << result.error;
}

TEST_F(TextLm, APackWithoutTokensEndsItWithOneLine) {
  make_pack("untyped", 5, 50, 0);
  const auto result = run(2, "untyped");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "holds no tokens"), 1) << result.error;
}

TEST_F(TextLm, ASampleOverTheCapEndsItWithOneLine) {
  const auto result = run(2, "train", {"--cap=20"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "text_lm: rank 0"), 1) << result.error;
}

TEST_F(TextLm, TokenIdsOutsideTheVocabularyEndIt) {
  make_pack("larger", 60, 60, 2);
  const auto result = run(2, "larger", {"--cap=50"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error, HasSubstr("the model's vocabulary ends at 49"));
}

TEST_F(TextLm, AWrongCallIsRefusedBeforeAnythingStarts) {
  const auto result = run_process({TEXT_LM, "--steps", "3", "--epochs", "2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("--steps"));
}

}  // namespace
}  // namespace lockstep
