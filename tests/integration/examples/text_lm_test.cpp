// The example program as a user starts it: it learns, with the same result on any number of ranks, and
// invalid data ends it with one line.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>

#include "common/error.h"
#include "common/files.h"
#include "common/process.h"
#include "staging/pack/write/create.h"
#include "tests/integration/mpi_job.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;
using ::testing::Lt;
using ::testing::Not;

class TextLm : public ::testing::Test {
 protected:
  TextLm() {
    ::setenv("OMP_NUM_THREADS", "1", 1);
    ::setenv("LOCKSTEP_TIMEOUT", "60", 1);
    ::unsetenv("LOCKSTEP_DATA");
    // Sequences that count upwards from any number, so the next token is certain after learning.
    make_pack("train", 60, 50, 2);
    make_pack("heldout", 10, 50, 2);
  }
  ~TextLm() override { fs::remove_all(folder_); }

  void make_pack(const std::string& name, int samples, int vocabulary, int token_bytes,
                 int first_length = 5) const {
    const fs::path files = folder_ / (name + "-files");
    fs::create_directories(files);
    pack::CreateOptions options;
    for (int i = 0; i < samples; ++i) {
      std::string bytes;
      const int length = i == 0 ? first_length : 5 + i * 7 % 40;
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

  std::vector<std::string> call(int ranks, const std::string& train,
                                const std::vector<std::string>& more) const {
    std::vector<std::string> program = {TEXT_LM,
                                        "--data",
                                        (folder_ / train).string(),
                                        "--heldout",
                                        (folder_ / "heldout").string(),
                                        "--vocabulary=50",
                                        "--width=" + width_,
                                        "--layers=1",
                                        "--heads=" + heads_,
                                        "--warm-up=2"};
    program.insert(program.end(), more.begin(), more.end());
    return lockstep::testing::mpi_command(std::to_string(ranks), program);
  }

  ProcessResult run(int ranks, const std::string& train, const std::vector<std::string>& more = {}) const {
    return run_process(call(ranks, train, more));
  }

  // By a shell on each rank: mpirun of Open MPI 5.0.7 ends with a segmentation fault when it is given two programs.
  ProcessResult run_with_other_data_on_rank_1(const std::string& data) const {
    std::vector<std::string> command = call(2, "train", {"--cap=50"});
    const std::string script =
        "[ $OMPI_COMM_WORLD_RANK = 0 ] || set -- \"${@/%\\/train//" + data + "}\"; exec \"$@\"";
    command.insert(std::find(command.begin(), command.end(), TEXT_LM), {"bash", "-c", script, "bash"});
    return run_process(command);
  }

  // Starts the job in the background and waits until it has written its next checkpoint. Returns the process
  // of mpirun, or nullopt if the job ended before that.
  std::optional<pid_t> start_until_next_checkpoint(int ranks, const std::vector<std::string>& more) const;
  // The same, and kills all its ranks and mpirun a random time later. Returns false if the job ended before.
  bool kill(int ranks, const std::vector<std::string>& more, std::mt19937& random) const;

  fs::path checkpoint() const { return folder_ / "checkpoints"; }

  static int lines(const std::string& text, const std::string& with) {
    int count = 0;
    for (auto at = text.find(with); at != std::string::npos; at = text.find(with, at + 1)) ++count;
    return count;
  }

  const lockstep::testing::MpiMemory memory_;
  std::string width_ = "16";
  std::string heads_ = "2";
  fs::path folder_ = fs::path(::testing::TempDir()) / fmt::format("text_lm_test.{}", ::getpid());
};

// All samples were trained on equally often, restarts included.
MATCHER_P(SawEverySample, times, "") {
  *result_listener << "seen from " << arg["least_seen"] << " to " << arg["most_seen"] << " times";
  return arg["least_seen"] == times && arg["most_seen"] == times;
}

// The name of the newest checkpoint; empty if there is none.
std::string newest_in(const fs::path& folder) {
  std::string newest;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("step-")) newest = std::max(newest, name);
  }
  return newest;
}

std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", process));
  return {std::istream_iterator<pid_t>(file), {}};
}

// mpirun is the first child of mpirun.sh.
std::vector<pid_t> ranks_of(pid_t launcher) {
  return children_of(children_of(launcher).at(0));
}

std::optional<pid_t> TextLm::start_until_next_checkpoint(int ranks,
                                                         const std::vector<std::string>& more) const {
  const std::string before = newest_in(checkpoint());
  const std::vector<std::string> command = call(ranks, "long", more);
  const pid_t launcher = ::fork();
  if (launcher == 0) {
    std::vector<char*> arguments;
    arguments.reserve(command.size() + 1);
    for (const auto& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    const int nowhere = ::open("/dev/null", O_WRONLY);
    ::dup2(nowhere, STDOUT_FILENO);
    ::dup2(nowhere, STDERR_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  int status = 0;
  bool ended = false;
  while (newest_in(checkpoint()) == before && !ended) {
    ended = ::waitpid(launcher, &status, WNOHANG) == launcher;
    ::usleep(1000);
  }
  return ended ? std::nullopt : std::optional(launcher);
}

bool TextLm::kill(int ranks, const std::vector<std::string>& more, std::mt19937& random) const {
  const auto launcher = start_until_next_checkpoint(ranks, more);
  if (!launcher) return false;
  ::usleep(std::uniform_int_distribution<useconds_t>(0, 200'000)(random));
  for (const pid_t rank : ranks_of(*launcher)) ::kill(rank, SIGKILL);
  for (const pid_t child : children_of(*launcher)) ::kill(child, SIGKILL);
  ::kill(*launcher, SIGKILL);
  int status = 0;
  ::waitpid(*launcher, &status, 0);
  return WIFSIGNALED(status);
}

TEST_F(TextLm, KilledAndResumedOnAnyNumberOfRanksItSeesEverySampleOnce) {
  make_pack("long", 1800, 50, 2);
  const std::vector<std::string> more = {"--cap=60", "--epochs=1", "--checkpoint=" + checkpoint().string(),
                                         "--checkpoint-steps=7", "--json"};
  const unsigned seed = std::random_device()();
  std::mt19937 random(seed);
  SCOPED_TRACE(fmt::format("random seed {}", seed));
  int kills = 0;
  for (const int ranks : {1, 2, 3}) {
    fs::remove_all(checkpoint());
    kills += kill(2, more, random) ? 1 : 0;
    kills += kill(ranks, more, random) ? 1 : 0;  // again, after it was resumed
    const auto result = run(4 - ranks, "long", more);
    ASSERT_EQ(result.exit_code, 0) << result.error;
    const auto json = nlohmann::json::parse(result.output);
    EXPECT_GT(json["resumed_at_step"], 0);
    EXPECT_EQ(json["samples"], 1800);
    EXPECT_THAT(json, SawEverySample(1)) << ranks << " ranks";
    std::int64_t tokens = 0;
    for (int i = 0; i < 1800; ++i) tokens += 5 + i * 7 % 40;
    EXPECT_EQ(json["tokens"], tokens);
    EXPECT_LT(json["perplexity_after"], 40) << "a resumed training must not forget";
  }
  EXPECT_GE(kills, 4) << "too few of the jobs lived long enough to be killed";
}

TEST_F(TextLm, ResumedOnTheSameNumberOfRanksItGivesTheSameModel) {
  make_pack("long", 800, 50, 2);
  const auto options = [&](const std::string& file) {
    return std::vector<std::string>{"--cap=60",       "--epochs=2",
                                    "--accumulate=2", "--checkpoint-steps=5",
                                    "--json",         "--checkpoint=" + (folder_ / file).string()};
  };
  std::mt19937 random(::getpid());
  ASSERT_TRUE(kill(2, options("checkpoints"), random));
  const auto resumed = nlohmann::json::parse(run(2, "long", options("checkpoints")).output);
  const auto whole = nlohmann::json::parse(run(2, "long", options("whole")).output);
  EXPECT_GT(resumed["resumed_at_step"], 0);
  EXPECT_EQ(resumed["steps"], whole["steps"]);
  EXPECT_EQ(resumed["tokens"], whole["tokens"]);
  EXPECT_EQ(resumed["perplexity_after"], whole["perplexity_after"]);
}

TEST_F(TextLm, ACompleteTrainingIsNotContinued) {
  const std::vector<std::string> more = {"--cap=50", "--epochs=1", "--checkpoint=" + checkpoint().string(),
                                         "--json"};
  const auto first = nlohmann::json::parse(run(2, "train", more).output);
  const auto second = nlohmann::json::parse(run(3, "train", more).output);
  EXPECT_EQ(second["steps"], first["steps"]);
  EXPECT_EQ(second["tokens"], first["tokens"]);
  EXPECT_THAT(second, SawEverySample(1));
  const auto perplexity = first["perplexity_after"].get<double>();
  EXPECT_NEAR(second["perplexity_after"].get<double>(), perplexity, 1e-4 * perplexity);
}

TEST_F(TextLm, ACheckpointThatDoesNotFitEndsItWithOneLine) {
  const std::string option = "--checkpoint=" + checkpoint().string();
  ASSERT_EQ(run(1, "train", {"--cap=50", "--steps=2", option}).exit_code, 0);
  width_ = "32";
  const auto wider = run(2, "train", {"--cap=50", "--steps=3", option});
  width_ = "16";
  EXPECT_NE(wider.exit_code, 0);
  EXPECT_THAT(wider.error, HasSubstr("[50, 16] in the checkpoint, but Float [50, 32] here"));
  heads_ = "4";
  const auto more_heads = run(2, "train", {"--cap=50", "--steps=3", option});
  heads_ = "2";
  EXPECT_NE(more_heads.exit_code, 0);
  EXPECT_THAT(more_heads.error, HasSubstr("its model has 2 heads, but this one has 4 heads"));
  const auto other_data = run(2, "heldout", {"--cap=50", "--steps=3", option});
  EXPECT_NE(other_data.exit_code, 0);
  EXPECT_THAT(other_data.error, HasSubstr("belongs to other data"));
  fs::resize_file(checkpoint() / "step-000002/model.safetensors", 1000);
  const auto torn = run(2, "train", {"--cap=50", "--steps=3", option});
  EXPECT_NE(torn.exit_code, 0);
  EXPECT_THAT(torn.error, HasSubstr("step-000002 is damaged: model.safetensors has 1000 B instead of"));
}

TEST_F(TextLm, ASignalEndsItWithACheckpointFromWhichItContinues) {
  make_pack("long", 1800, 50, 2);
  const std::vector<std::string> more = {"--cap=60", "--epochs=1", "--checkpoint=" + checkpoint().string(),
                                         "--checkpoint-steps=7", "--json"};
  for (const int signal : {SIGUSR1, SIGTERM}) {
    const auto launcher = start_until_next_checkpoint(2, more);
    ASSERT_TRUE(launcher) << "the job ended before it could be stopped";
    ::kill(signal == SIGTERM ? ranks_of(*launcher).at(1) : *launcher, signal);  // mpirun passes SIGUSR1 on
    int status = 0;
    ::waitpid(*launcher, &status, 0);
    ASSERT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), 75);
  }
  const auto json = nlohmann::json::parse(run(3, "long", more).output);
  EXPECT_GT(json["resumed_at_step"], 7);
  EXPECT_THAT(json, SawEverySample(1));
}

TEST_F(TextLm, LearnsAndPrintsThePerplexity) {
  const auto result = run(2, "train", {"--cap=50", "--epochs=12"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr("perplexity before training: "));
  EXPECT_THAT(result.output, HasSubstr("perplexity after training: "));
  EXPECT_THAT(result.output, HasSubstr(" tokens/s"));
#ifdef LOCKSTEP_WITH_REPORT
  EXPECT_THAT(result.output, HasSubstr("\nbound by: ")) << "the verdict";
  EXPECT_THAT(result.output, HasSubstr("\ngoodput: "));
#endif
  EXPECT_THAT(result.output, HasSubstr("lockstep-report "));
  EXPECT_THAT(result.output, HasSubstr("4 batches ahead: at most "));
  EXPECT_THAT(result.output, HasSubstr(" suffice ("));

  const auto measured = run(2, "train", {"--cap=50", "--epochs=12", "--json"});
  const auto json = nlohmann::json::parse(measured.output);
  EXPECT_NEAR(json["perplexity_before"].get<double>(), 50, 10);
  EXPECT_LT(json["perplexity_after"].get<double>(), 10);
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_GT(json["loss"], 0);
  EXPECT_LT(json["loss"], std::log(50));
  EXPECT_LT(json["data_wait_seconds"].get<double>(), 0.02 * json["seconds"].get<double>());
}

// With the optimizer's state divided over the ranks it is the same training; what rounds to bfloat16 learns as well.
TEST_F(TextLm, EverySwitchLearnsAsWell) {
  const auto perplexity = [&](const std::vector<std::string>& switches) {
    std::vector<std::string> more = {"--cap=50", "--epochs=6", "--json"};
    more.insert(more.end(), switches.begin(), switches.end());
    const auto result = run(2, "train", more);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return nlohmann::json::parse(result.output)["perplexity_after"].get<double>();
  };
  const double without = perplexity({});
  EXPECT_NEAR(perplexity({"--distributed-optimizer", "--activation-checkpointing", "--deterministic"}),
              without, 1e-2 * without);
  EXPECT_NEAR(perplexity({"--bf16", "--compress"}), without, 0.1 * without);
}

TEST_F(TextLm, TheFirstForwardChecksTheModelUnlessThatIsOff) {
  width_ = "66";
  heads_ = "1";
  const std::string line =
      "check of the model: embedding.weight and 5 more: a dimension of 66 is not a multiple of 8";
  EXPECT_THAT(run(2, "train", {"--cap=50", "--steps=2"}).error, HasSubstr(line));
  ::setenv("LOCKSTEP_CHECK", "off", 1);
  EXPECT_THAT(run(1, "train", {"--cap=50", "--steps=1"}).error, Not(HasSubstr("check of the model")));
  ::setenv("LOCKSTEP_CHECK", "maybe", 1);
  EXPECT_THAT(run(1, "train", {"--cap=50", "--steps=1"}).error,
              HasSubstr("LOCKSTEP_CHECK='maybe' must be on or off"));
  ::unsetenv("LOCKSTEP_CHECK");
}

TEST_F(TextLm, ALossThatIsNotFiniteEndsItWithTheStepAndTheOperation) {
  const auto result = run(2, "train", {"--cap=50", "--epochs=12", "--lr=1e30", "--clip=1e30"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.error, AllOf(HasSubstr("the loss is "), HasSubstr(" in step ")));
}

TEST_F(TextLm, WritesATextAsTokenIds) {
  const fs::path file = folder_ / "text";
  const auto result = run(2, "train", {"--cap=50", "--steps=2", "--sample=" + file.string()});
  ASSERT_EQ(result.exit_code, 0) << result.error;
  std::ifstream text(file);
  const std::vector<int> ids{std::istream_iterator<int>(text), {}};
  EXPECT_TRUE(text.eof()) << "not a number";
  ASSERT_THAT(ids.size(), AllOf(Ge(2U), Le(120U)));
  EXPECT_EQ(ids.front(), 1) << "<s>";
  EXPECT_THAT(ids, Each(AllOf(Ge(0), Lt(50))));
  const auto end = std::find(ids.begin(), ids.end(), 2);
  EXPECT_TRUE(end == ids.end() || end + 1 == ids.end()) << "tokens after </s>";
}

TEST_F(TextLm, HeldOutPagesMeasureTheSameOnAnyNumberOfRanks) {
  std::vector<double> before;
  for (const int ranks : {1, 3}) {
    const auto json = nlohmann::json::parse(run(ranks, "train", {"--cap=50", "--steps=1", "--json"}).output);
    before.push_back(json["perplexity_before"].get<double>());
  }
  EXPECT_NEAR(before[0], before[1], 1e-4 * before[0]);
}

TEST_F(TextLm, PaddedBatchesTrainOnTheSameTokensAndLearnAsWell) {
  std::int64_t tokens = 0;
  for (int i = 0; i < 60; ++i) tokens += 5 + i * 7 % 40;
  const auto json =
      nlohmann::json::parse(run(2, "train", {"--padded", "--cap=100", "--epochs=12", "--json"}).output);
  EXPECT_EQ(json["tokens"], 12 * tokens);
  EXPECT_THAT(json, SawEverySample(12));
  EXPECT_LT(json["perplexity_after"].get<double>(), 10);
}

TEST_F(TextLm, PaddedTrainingIsMeasuredOnPaddedBatchesWithTheSameResult) {
  std::vector<double> perplexity;
  for (const char* kind : {"--accumulate=1", "--padded"}) {
    const auto result = run(2, "train", {kind, "--cap=100", "--steps=1"});
    EXPECT_EQ(result.exit_code, 0) << result.error;
    const auto at = result.output.find("perplexity before training: ");
    ASSERT_NE(at, std::string::npos) << result.output;
    perplexity.push_back(std::stod(result.output.substr(at + 28)));
    const auto padding = result.output.find(" of padding");
    EXPECT_EQ(padding != std::string::npos, kind == std::string("--padded"));
    EXPECT_THAT(result.output, Not(HasSubstr(" and 0 of padding")));
  }
  EXPECT_NEAR(perplexity[0], perplexity[1], 0.2);
}

TEST_F(TextLm, AfterTheFirstStepNoRankWaitsForData) {
  make_pack("long", 1800, 50, 2);
  width_ = "64";
  const auto json = nlohmann::json::parse(run(2, "long", {"--cap=400", "--epochs=1", "--json"}).output);
  EXPECT_GT(json["steps"], 40);
  EXPECT_LT(json["data_wait_seconds"].get<double>(), 0.002 * json["seconds"].get<double>());
}

TEST_F(TextLm, WithoutACudaDeviceItComputesOnTheCpuUnlessCudaIsAskedFor) {
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // also on a machine that has one
  for (const std::string device : {"cpu", "auto"}) {
    const auto result = run(2, "train", {"--cap=50", "--steps=1", "--json", "--device=" + device});
    ASSERT_EQ(result.exit_code, 0) << result.error;
    EXPECT_EQ(nlohmann::json::parse(result.output)["device"], "cpu");
  }
  const auto refused = run(2, "train", {"--cap=50", "--steps=1", "--device=cuda"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(lines(refused.error, "--device cuda: LibTorch "), 1) << refused.error;
  EXPECT_THAT(refused.error, HasSubstr("finds no CUDA device; choose cpu or auto"));
  EXPECT_EQ(run(1, "train", {"--device=gpu"}).exit_code, 2);
  ::unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_F(TextLm, MissingDataEndsItWithOneLine) {
  const auto result = run(2, "nowhere");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "nowhere"), 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr("text_lm: rank 0 on "));
  EXPECT_THAT(result.output, Not(HasSubstr("perplexity")));
}

TEST_F(TextLm, MissingDataOnOneRankEndsItWithOneLine) {
  const auto result = run_with_other_data_on_rank_1("nowhere");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(lines(result.error, "text_lm: rank 1 on "), 1) << result.error;
  EXPECT_THAT(result.error, HasSubstr("nowhere"));
}

TEST_F(TextLm, DataThatOneRankCannotLoadEndsItWithThatRanksLine) {
  make_pack("long", 60, 50, 2, 60);
  const auto result = run_with_other_data_on_rank_1("long");
  EXPECT_NE(result.exit_code, 0);
  EXPECT_EQ(lines(result.error, "has 60 tokens, over the cap of 50"), 1) << result.error;
}

TEST_F(TextLm, DataThatIsNotPackedEndsItWithOneLine) {
  const auto result = run(2, "train-files");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "train-files has no index"), 1) << result.error;
}

TEST_F(TextLm, APackWithoutTokensEndsItWithOneLine) {
  make_pack("untyped", 5, 50, 0);
  const auto result = run(2, "untyped");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(lines(result.error, "its samples are not tokens"), 1) << result.error;
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

TEST_F(TextLm, AUsageErrorIsReportedBeforeAnythingStarts) {
  const auto result = run_process({TEXT_LM, "--steps", "3", "--epochs", "2"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.error, HasSubstr("--steps"));
}

}  // namespace
}  // namespace lockstep
