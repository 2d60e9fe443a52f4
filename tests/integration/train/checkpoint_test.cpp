// A training that is resumed from a checkpoint gives what it would have given, and a checkpoint that does not
// fit changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <limits>
#include <optional>

#include "common/environment.h"
#include "common/file_system.h"
#include "common/files.h"
#include "runtime/torch_version.h"
#include "runtime/train/checkpoint/checkpointer.h"
#include "tests/integration/train/checkpoint_world.h"
#include "tests/integration/train/optimizer_archive.h"

namespace lockstep::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// A step on this rank's rows of a batch that is the same on any number of ranks.
template <typename Ddp>
void backward(Ddp& ddp, std::int64_t step) {
  const auto inputs = rows(12, 100 + static_cast<std::uint64_t>(step));
  const auto targets = rows(12, 200 + static_cast<std::uint64_t>(step));
  const std::int64_t each = 12 / world().size();
  const std::int64_t begin = each * world().rank();
  const std::int64_t end = world().rank() + 1 == world().size() ? 12 : begin + each;
  ddp.backward(sum_of_squares(ddp(inputs.slice(0, begin, end)), targets.slice(0, begin, end)), end - begin);
}

/// A training with all kinds of objects. Dropout makes the random generators matter.
struct Training {
  explicit Training(const fs::path& folder, CheckpointerOptions options = {})
      : ddp(net, world(), small_buckets()),
        optimizer(net->parameters(), kDecayingAdamW),
        scaler(world(), {.initial_scale = 8, .growth_interval = 2}),
        learning_rate(optimizer, schedule::cosine(50)),
        checkpointer(world(), folder, options) {
    checkpointer.add("model", *net);
    checkpointer.add("optimizer", optimizer);
    checkpointer.add("scaler", scaler);
    checkpointer.add("learning_rate", learning_rate);
    checkpointer.add("losses", losses);
    checkpointer.add("best", best);
    checkpointer.add("note", note);
    checkpointer.add("tokens", tokens);
  }

  void train(std::int64_t until) {
    for (; step < until; ++step) {
      const std::int64_t mine = 12 / world().size();
      const auto noise =
          torch::dropout(torch::ones({mine, 6}, torch::kDouble), 0.3, true);  // each rank's own
      const auto inputs = rows(mine, 100 + static_cast<std::uint64_t>(step)) * noise;
      const auto loss = sum_of_squares(ddp(inputs), torch::zeros({mine, 6}, torch::kDouble));
      ddp.backward(scaler.scale(loss), mine);
      scaler.step(optimizer);
      scaler.update();
      optimizer.zero_grad();
      learning_rate.step();
      losses[step % 8] = static_cast<double>(step);
      tokens += 12;
      best = std::numeric_limits<double>::infinity();
      note = fmt::format("after step {} \xff\n", step);
    }
  }

  Net net;
  DistributedDataParallel<NetImpl> ddp;
  torch::optim::AdamW optimizer;
  GradScaler scaler;
  LearningRate learning_rate;
  torch::Tensor losses = torch::zeros({8}, torch::kDouble);
  double best = 0;
  std::string note;
  std::int64_t tokens = 0;
  std::int64_t step = 0;
  Checkpointer checkpointer;
};

void expect_same(Training& a, Training& b) {
  EXPECT_TRUE(same_bits(*a.net, *b.net));
  EXPECT_EQ(a.scaler.current_scale(), b.scaler.current_scale());
  EXPECT_EQ(a.learning_rate.values(), b.learning_rate.values());
  EXPECT_TRUE(same_bits(a.losses, b.losses));
  EXPECT_EQ(a.note, b.note);
  EXPECT_EQ(a.tokens, b.tokens);
  EXPECT_EQ(a.best, b.best);
}

TEST(Checkpointer, ResumedOnTheSameRanksATrainingIsTheSameToTheBit) {
  const SharedFolder folder;
  torch::manual_seed(1);
  Training whole(folder / "run");
  torch::manual_seed(static_cast<std::uint64_t>(world().rank() + 5));
  whole.train(4);
  whole.checkpointer.save(4);
  whole.train(6);  // while it is written
  whole.checkpointer.save(6);
  whole.train(9);
  whole.checkpointer.wait();

  torch::manual_seed(99);
  Training resumed(folder / "run", {.read_only = true});
  resumed.step = resumed.checkpointer.load_latest().value_or(0);
  ASSERT_EQ(resumed.step, 6);
  EXPECT_EQ(resumed.checkpointer.last_step(), 6);
  resumed.train(9);
  expect_same(whole, resumed);
}

TEST(Checkpointer, AnotherScheduleSetsTheLearningRateOfItsStep) {
  const SharedFolder folder;
  const torch::Tensor parameter = torch::zeros({2});
  for (const double base : {0.25, 0.5}) {
    torch::optim::SGD optimizer({parameter}, torch::optim::SGDOptions(base));
    LearningRate learning_rate(optimizer, schedule::linear(1, 0.5, 2));
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("learning_rate", learning_rate);
    checkpointer.add("optimizer", optimizer);
    if (checkpointer.load_latest()) {
      EXPECT_THAT(learning_rate.values(), ::testing::ElementsAre(0.375));
      continue;
    }
    learning_rate.step();
    checkpointer.save(1);
    checkpointer.wait();
  }
}

TEST(Checkpointer, WithALocalFolderGivesTheSame) {
  const SharedFolder folder;
  const SharedFolder local;
  fs::create_directories(local.path());
  Training whole(folder / "run", {.local_dir = local.path()});
  for (const std::int64_t step : {2, 3, 4, 5}) {
    whole.train(step);
    whole.checkpointer.save(step);
  }
  whole.checkpointer.wait();
  EXPECT_TRUE(fs::is_empty(local.path()));
  Training resumed(folder / "run", {.read_only = true});
  EXPECT_EQ(resumed.checkpointer.load_latest(), 5);
  expect_same(whole, resumed);
  EXPECT_FALSE(any_rank(fs::exists(folder / "run" / "step-000003")));
}

// Which ranks save and load is chosen by CMake (resume_checkpoint_*): the environment names the folder.
class ResumedElsewhere : public ::testing::Test {
 protected:
  ResumedElsewhere() : folder(environment::get_or("LOCKSTEP_TEST_RESUME", "")) {
    if (!folder.empty()) return;
    own.emplace();
    folder = own->path();
  }
  std::optional<SharedFolder> own;
  fs::path folder;
};

/// SGD on one linear layer with whole numbers: each sum is exact, so the order and the number of ranks do not
/// matter.
struct ExactTraining {
  explicit ExactTraining(const fs::path& folder)
      : net(torch::nn::LinearOptions(6, 6).bias(false)), checkpointer(world(), folder) {
    torch::NoGradGuard no_grad;
    net->to(torch::kDouble);
    net->weight.copy_((torch::arange(36, torch::kDouble) - 18).reshape({6, 6}));
    ddp.emplace(net, world(), small_buckets());
    checkpointer.add("model", *net);
  }

  template <typename Step>
  void train(std::int64_t until, const Step& update) {
    for (; step < until; ++step) {
      torch::manual_seed(static_cast<std::uint64_t>(step));
      const auto inputs = torch::randint(-2, 3, {16, 6}, torch::kDouble);
      const std::int64_t each = 16 / world().size();
      const std::int64_t begin = each * world().rank();
      const std::int64_t end = world().rank() + 1 == world().size() ? 16 : begin + each;
      ddp->backward(sum_of_squares((*ddp)(inputs.slice(0, begin, end)), inputs.slice(0, begin, end)),
                    end - begin);
      update();
    }
  }

  torch::nn::Linear net;
  std::optional<DistributedDataParallel<torch::nn::LinearImpl>> ddp;
  std::int64_t step = 0;
  Checkpointer checkpointer;
};

const auto kSgd = torch::optim::SGDOptions(1.0 / 1024).momentum(0.5);

TEST_F(ResumedElsewhere, JobIsSaved) {
  ExactTraining whole(folder / "exact");
  torch::optim::SGD sgd(whole.net->parameters(), kSgd);
  whole.checkpointer.add("optimizer", sgd);
  whole.train(3, [&] {
    sgd.step();
    sgd.zero_grad();
  });
  whole.checkpointer.save(3);
  whole.checkpointer.wait();

  Net net;
  {
    torch::NoGradGuard no_grad;
    for (auto& parameter : net->parameters())
      parameter.copy_(torch::arange(parameter.numel()).reshape(parameter.sizes()) * 0.01);
  }
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kDecayingAdamW);
  Checkpointer checkpointer(world(), folder / "sharded");
  checkpointer.add("model", *net);
  checkpointer.add("optimizer", optimizer);
  for (std::int64_t step = 0; step < 3; ++step) {
    backward(ddp, step);
    optimizer.step();
    optimizer.zero_grad();
  }
  checkpointer.save(3);
  checkpointer.wait();
}

TEST_F(ResumedElsewhere, JobContinuesToTheBit) {
  if (!fs::exists(folder / "exact")) GTEST_SKIP() << "run by resume_checkpoint_*";
  ExactTraining resumed(folder / "exact");
  torch::optim::SGD sgd(resumed.net->parameters(), kSgd);
  resumed.checkpointer.add("optimizer", sgd);
  const auto update = [&] {
    sgd.step();
    sgd.zero_grad();
  };
  ASSERT_EQ(resumed.checkpointer.load_latest(), 3);
  resumed.step = 3;
  resumed.train(5, update);

  torch::nn::Linear alone(torch::nn::LinearOptions(6, 6).bias(false));
  {
    torch::NoGradGuard no_grad;
    alone->to(torch::kDouble);
    alone->weight.copy_((torch::arange(36, torch::kDouble) - 18).reshape({6, 6}));
  }
  torch::optim::SGD reference(alone->parameters(), kSgd);
  for (std::int64_t step = 0; step < 5; ++step) {
    torch::manual_seed(static_cast<std::uint64_t>(step));
    const auto inputs = torch::randint(-2, 3, {16, 6}, torch::kDouble);
    reference.zero_grad();
    (sum_of_squares(alone(inputs), inputs) / 16.0).backward();
    reference.step();
  }
  EXPECT_TRUE(same_bits(resumed.net->weight, alone->weight));
}

TEST_F(ResumedElsewhere, ShardedStateIsTheSameToTheBit) {
  if (!fs::exists(folder / "sharded")) GTEST_SKIP() << "run by resume_checkpoint_*";
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kDecayingAdamW);
  Checkpointer checkpointer(world(), folder / "sharded");
  checkpointer.add("model", *net);
  checkpointer.add("optimizer", optimizer);
  ASSERT_EQ(checkpointer.load_latest(), 3);
  const SavedOptimizer loaded = state_on_rank_0(optimizer);

  // A plain optimizer loads the same state, and both continue alike.
  Net other;
  torch::optim::AdamW plain(other->parameters(), kDecayingAdamW);
  Checkpointer plain_checkpointer(world(), folder / "sharded", {.read_only = true});
  plain_checkpointer.add("model", *other);
  plain_checkpointer.add("optimizer", plain);
  ASSERT_EQ(plain_checkpointer.load_latest(), 3);
  EXPECT_TRUE(same_bits(*net, *other));
  if (world().rank() == 0) {
    for (const auto& item : other->named_parameters()) {
      const auto& state = loaded.parameters.at(item.key());
      const auto found = plain.state().find(torch_compat::optimizer_key(item.value()));
      ASSERT_NE(found, plain.state().end()) << item.key();
      const auto& adamw = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      EXPECT_EQ(state.at("step").toInt(), 3);
      EXPECT_EQ(adamw.step(), 3);
      EXPECT_TRUE(same_bits(adamw.exp_avg(), state.at("exp_avg").toTensor())) << item.key();
      EXPECT_TRUE(same_bits(adamw.exp_avg_sq(), state.at("exp_avg_sq").toTensor())) << item.key();
    }
  }
  DistributedDataParallel other_ddp(other, world(), small_buckets());
  for (std::int64_t step = 3; step < 6; ++step) {
    backward(ddp, step);
    optimizer.step();
    optimizer.zero_grad();
    backward(other_ddp, step);
    plain.step();
    plain.zero_grad();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_LT((net->parameters()[i] - other->parameters()[i]).abs().max().item<double>(), 1e-12);
}

TEST(Checkpointer, ShardedStateThatWasNotUsedYetIsSavedAgain) {
  const SharedFolder folder;
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kDecayingAdamW);
  backward(ddp, 0);
  optimizer.step();
  const SavedOptimizer before = state_on_rank_0(optimizer);
  {
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("optimizer", optimizer);
    checkpointer.save(1);
  }

  Net other;
  DistributedDataParallel other_ddp(other, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> loaded(other_ddp, kDecayingAdamW);
  Checkpointer again(world(), folder / "run");
  again.add("optimizer", loaded);
  ASSERT_EQ(again.load_latest(), 1);
  again.save(2);
  again.wait();
  ASSERT_EQ(again.load_latest(), 2);
  const SavedOptimizer after = state_on_rank_0(loaded);
  ASSERT_EQ(after.parameters.size(), before.parameters.size());
  for (const auto& [name, state] : before.parameters)
    EXPECT_TRUE(
        same_bits(state.at("exp_avg").toTensor(), after.parameters.at(name).at("exp_avg").toTensor()));
}

// Saves 5 as the value of step 1, and a damaged checkpoint of step 2.
void save_good_and_damaged(const fs::path& run) {
  std::int64_t value = 5;
  {
    Checkpointer checkpointer(world(), run);
    checkpointer.add("value", value);
    checkpointer.save(1);
    value = 6;
    checkpointer.save(2);
  }
  any_rank(false);
  if (world().rank() == 0) write_file_atomically(run / "step-000002/state.safetensors", "damaged");
}

TEST(Checkpointer, ADamagedCheckpointIsSkippedOnAllRanks) {
  const SharedFolder folder;
  save_good_and_damaged(folder / "run");
  std::int64_t value = 6;
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("value", value);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(checkpointer.load_latest(), 1);
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(value, 5);
  EXPECT_EQ(said.find("step-000002 is damaged") != std::string::npos, world().rank() == 0) << said;
  value = 8;
  checkpointer.save(2);
  checkpointer.wait();
  value = 0;
  EXPECT_EQ(checkpointer.load_latest(), 2);
  EXPECT_EQ(value, 8);
}

TEST(Checkpointer, ADamagedCheckpointDoesNotPushOutAGoodOne) {
  const SharedFolder folder;
  save_good_and_damaged(folder / "run");
  std::int64_t value = 5;
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("value", value);
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(checkpointer.load_latest(), 1);
  ::testing::internal::GetCapturedStderr();
  EXPECT_FALSE(any_rank(!fs::exists(folder / "run/step-000002"))) << "loading changes no file";
  checkpointer.save(3);
  checkpointer.wait();
  EXPECT_FALSE(any_rank(!fs::exists(folder / "run/step-000001")));
  EXPECT_FALSE(any_rank(fs::exists(folder / "run/step-000002")));
}

TEST(Checkpointer, AnObjectThatCannotBeSavedIsAnErrorOnAllRanks) {
  const SharedFolder folder;
  struct Queue {
    bool full = true;
    void save(torch::serialize::OutputArchive& /*archive*/) const {
      if (full) fail("the queue is full");
    }
    void load(torch::serialize::InputArchive& /*archive*/) {}
  } queue;
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("queue", queue);
  EXPECT_THAT(error_of([&] { checkpointer.save(1); }), HasSubstr("the queue is full"));
  queue.full = false;
  checkpointer.save(1);
  checkpointer.wait();
  EXPECT_EQ(checkpointer.load_latest(), 1);
}

// The periodic save and the stop signal of the documented loop meet in one step.
TEST(Checkpointer, TheRandomStatesOfANodeAreInOneFile) {
  const SharedFolder folder;
  torch::nn::Linear net(2, 2);
  Checkpointer checkpointer(world(), folder / "run");
  checkpointer.add("model", *net);
  checkpointer.save(1);
  checkpointer.wait();
  if (world().rank() != 0) return;
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "run/step-000001"))
    files += entry.path().filename().string().starts_with("random-") ? 1 : 0;
  EXPECT_EQ(files, world().nodes());
}

TEST(Checkpointer, SavingTheSameStepAgainDoesNothing) {
  const SharedFolder folder;
  std::int64_t value = 5;
  {
    Checkpointer checkpointer(world(), folder / "run");
    checkpointer.add("value", value);
    checkpointer.save(3);
    checkpointer.save(3);
    checkpointer.wait();
    checkpointer.save(3);
  }
  Checkpointer resumed(world(), folder / "run");
  resumed.add("value", value);
  EXPECT_EQ(resumed.load_latest(), 3);
  resumed.save(3);
  EXPECT_EQ(resumed.last_step(), 3);
}

TEST(Checkpointer, AnErrorOfTheThreadIsThrownOnAllRanksAndTheNextSaveTriesAgain) {
  const SharedFolder folder;
  struct Full : FileSystem {
    ssize_t call(const FileCall& call) override {
      if (full && call.kind == Kind::fallocate) {
        errno = ENOSPC;
        return -1;
      }
      return FileSystem::call(call);
    }
    std::atomic<bool> full = true;
  } system;
  std::int64_t value = 5;
  Checkpointer checkpointer(world(), folder / "run", {.file_system = &system});
  checkpointer.add("value", value);
  EXPECT_THAT(error_of([&] {
                checkpointer.save(1);
                checkpointer.wait();
              }),
              HasSubstr("No space left"));
  system.full = false;
  any_rank(false);
  checkpointer.save(1);  // the same step: its checkpoint does not exist
  checkpointer.wait();
  EXPECT_EQ(checkpointer.load_latest(), 1);
}

TEST(Checkpointer, RefusesMisuseWithAReason) {
  const SharedFolder folder;
  EXPECT_THAT(error_of([&] { Checkpointer(world(), ""); }), HasSubstr("the name of the folder is empty"));
  EXPECT_THAT(error_of([&] { Checkpointer(world(), folder / "run", {.keep = 0}); }), HasSubstr("keep is 0"));
  Checkpointer checkpointer(world(), folder / "run");
  std::int64_t value = 0;
  for (const char* name : {"", "a/b", "a b"})
    EXPECT_THAT(error_of([&] { checkpointer.add(name, value); }), HasSubstr("must consist of"));
  checkpointer.add("value", value);
  for (const char* name : {"value", "random", "state"})
    EXPECT_THAT(error_of([&] { checkpointer.add(name, value); }), HasSubstr("is taken"));
  Net net;
  torch::optim::LBFGS lbfgs(net->parameters());
  EXPECT_THAT(error_of([&] { checkpointer.add("lbfgs", lbfgs); }), HasSubstr("cannot hold this optimizer"));
  Net other;
  checkpointer.add("net", *net);
  checkpointer.add("other", *other);
  auto parameters = net->parameters();
  for (const auto& parameter : other->parameters()) parameters.push_back(parameter);
  torch::optim::SGD both(parameters, kSgd);
  EXPECT_THAT(error_of([&] { checkpointer.add("both", both); }), HasSubstr("with two parameters 'out_bias'"));
}

}  // namespace
}  // namespace lockstep::testing
