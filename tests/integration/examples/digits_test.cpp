// digits_cnn and finetune_script as a user starts them, on the real handwritten digits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/files.h"
#include "common/process.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class Digits : public ::testing::Test {
 protected:
  // The data are downloaded once for a build folder.
  static void SetUpTestSuite() {
    prepared_ =
        new ProcessResult(run_process({SOURCE "/examples/digits_cnn/prepare.sh", DATA, "--bin", BIN}));
  }
  static void TearDownTestSuite() { delete prepared_; }

  void SetUp() override {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::unsetenv("LOCKSTEP_DATA");
    if (prepared_->error.find("cannot download") != std::string::npos) GTEST_SKIP() << prepared_->error;
    ASSERT_EQ(prepared_->exit_code, 0) << prepared_->error;
  }

  static ProcessResult run(const std::string& ranks, const std::string& name,
                           const std::vector<std::string>& more) {
    std::vector<std::string> program = {BIN "/" + name, "--data", DATA "/digits", "--heldout",
                                        DATA "/digits-heldout"};
    program.insert(program.end(), more.begin(), more.end());
    return run_process(lockstep::testing::mpi_command(ranks, program));
  }

  static json result_of(const std::string& ranks, const std::string& name, std::vector<std::string> more) {
    more.emplace_back("--json");
    const auto result = run(ranks, name, more);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return result.exit_code == 0 ? json::parse(result.output) : json::object({{"accuracy_after", 0}});
  }

  const lockstep::testing::MpiMemory memory_;
  static const ProcessResult* prepared_;
};

const ProcessResult* Digits::prepared_ = nullptr;

TEST_F(Digits, TheNetworkReadsHeldOutDigits) {
  const auto cnn = result_of("2", "digits_cnn", {});
  EXPECT_GE(cnn["accuracy_after"], 0.97) << cnn;
  EXPECT_LT(cnn["accuracy_before"], 0.3) << cnn;
  EXPECT_EQ(cnn["steps"], 10 * 23) << "1,438 pictures in steps of 64, the last one smaller";
}

TEST_F(Digits, ItContinuesFromItsCheckpointAndEndsWithTheVerdict) {
  const lockstep::testing::TemporaryFolder folder;
  const std::string checkpoint = "--checkpoint=" + folder.path().string();
  EXPECT_EQ(result_of("2", "digits_cnn", {"--epochs=2", checkpoint})["steps"], 2 * 23);
  const auto longer = run("1", "digits_cnn", {"--epochs=4", "--batch=64", checkpoint});
  EXPECT_EQ(longer.exit_code, 0) << longer.error;
  EXPECT_THAT(longer.output, HasSubstr("trained 92 steps on "));
#ifdef LOCKSTEP_WITH_REPORT
  EXPECT_THAT(longer.output, HasSubstr("\nbound by: "));
  EXPECT_THAT(longer.output, HasSubstr("\ngoodput: "));
#endif
}

TEST_F(Digits, ItReadsThemInBfloat16AndWithBatchNormOverAllRanks) {
  for (const std::string option : {"--bf16", "--sync-batch-norm"}) {
    const auto cnn = result_of("2", "digits_cnn", {option});
    EXPECT_GE(cnn["accuracy_after"], 0.97) << option << ": " << cnn;
  }
}

TEST_F(Digits, BatchNormOverAllRanksTrainsAsOneRankWithTheWholeBatch) {
  const auto two = result_of("2", "digits_cnn", {"--sync-batch-norm", "--epochs=1", "--batch=32"});
  const auto one = result_of("1", "digits_cnn", {"--epochs=1", "--batch=64"});
  EXPECT_NEAR(two["loss"].get<double>(), one["loss"].get<double>(), 0.01) << two << one;
}

TEST_F(Digits, AScriptThatKnowsFiveDigitsLearnsTheOthers) {
  const auto exported = run_process({PYTHON, SOURCE "/examples/finetune_script/prepare.py", DATA});
  if (exported.error.find("does not have torch") != std::string::npos) GTEST_SKIP() << exported.error;
  ASSERT_EQ(exported.exit_code, 0) << exported.error;
  const std::string trained = ::testing::TempDir() + "digits_test." + std::to_string(::getpid()) + ".pt";
  const auto script =
      result_of("2", "finetune_script", {"--model", DATA "/pretrained.pt", "--save", trained});
  EXPECT_LT(script["accuracy_before"], 0.55) << script;
  EXPECT_GE(script["accuracy_after"], 0.97) << script;
  EXPECT_GE(result_of("2", "finetune_script", {"--model", DATA "/pretrained.pt", "--bf16"})["accuracy_after"],
            0.97);
  // What it saved is a script that starts where it ended.
  const auto again = result_of("1", "finetune_script", {"--model", trained, "--epochs=1"});
  EXPECT_EQ(again["accuracy_before"], script["accuracy_after"]);
  std::filesystem::remove(trained);
}

TEST_F(Digits, AFileThatIsNotTorchScriptEndsItWithOneLine) {
  const auto result = run("2", "finetune_script", {"--model", DATA "/digits.csv"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.error, HasSubstr("finetune_script: rank 0 on "));
  EXPECT_THAT(result.error, HasSubstr("cannot load the TorchScript model " DATA "/digits.csv"));
}

}  // namespace
}  // namespace lockstep
