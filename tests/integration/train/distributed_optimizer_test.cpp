// The distributed optimizer and clipping give the result of one process on the whole batch.
#include "runtime/train/distributed_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "common/error.h"
#include "runtime/torch_version.h"
#include "runtime/train/grad_scaler.h"
#include "runtime/train/optimizer_state.h"
#include "tests/integration/ddp/models.h"
#include "tests/integration/train/optimizer_archive.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-12;

// The number of rows of a rank in a micro-batch.
std::int64_t rows_of(int rank, int micro_batch) {
  return 1 + (rank * 5 + micro_batch * 3) % 4;
}

struct Case {
  bool by_count = true;
  int micro_batches = 1;
  double clip = 0;  // 0: no clipping
};

// Runs backward of one batch under DDP; each rank takes its rows.
void run_backward(DistributedDataParallel<NetImpl>& ddp, const Case& c, int step) {
  std::int64_t total = 0;
  for (int m = 0; m < c.micro_batches; ++m) {
    for (int r = 0; r < world().size(); ++r) total += c.by_count ? rows_of(r, m) : 3;
  }
  const auto inputs = rows(total, 100 + static_cast<std::uint64_t>(step));
  const auto targets = rows(total, 200 + static_cast<std::uint64_t>(step));
  std::int64_t begin = 0;
  for (int m = 0; m < c.micro_batches; ++m) {
    const auto hold = ddp.no_sync_unless(m + 1 == c.micro_batches);
    for (int r = 0; r < world().size(); ++r) {
      const std::int64_t end = begin + (c.by_count ? rows_of(r, m) : 3);
      if (r == world().rank()) {
        const auto loss = sum_of_squares(ddp(inputs.slice(0, begin, end)), targets.slice(0, begin, end));
        if (c.by_count) {
          ddp.backward(loss, end - begin);
        } else {
          ddp.backward(loss);
        }
      }
      begin = end;
    }
  }
}

// Runs backward of the same batch in one process.
void run_backward_alone(Net& net, const Case& c, int step) {
  std::int64_t total = 0;
  for (int m = 0; m < c.micro_batches; ++m) {
    for (int r = 0; r < world().size(); ++r) total += c.by_count ? rows_of(r, m) : 3;
  }
  const auto inputs = rows(total, 100 + static_cast<std::uint64_t>(step));
  const auto targets = rows(total, 200 + static_cast<std::uint64_t>(step));
  const auto divisor = c.by_count ? total : world().size();
  (sum_of_squares(net->forward(inputs), targets) / static_cast<double>(divisor)).backward();
}

double distance(const Net& left, const Net& right) {
  double largest = 0;
  const auto a = left->parameters();
  const auto b = right->parameters();
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, (a[i] - b[i]).abs().max().item<double>());
  return largest;
}

template <typename Optimizer, typename Options>
void expect_equal_to_one_process(const Options& options, const Case& c) {
  torch::manual_seed(7);
  Net net;
  Net alone = copy_of(net);
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<Optimizer> optimizer(ddp, options);
  Optimizer reference(alone->parameters(), options);
  for (int step = 0; step < 5; ++step) {
    run_backward(ddp, c, step);
    run_backward_alone(alone, c, step);
    if (c.clip > 0) {
      const double norm = optimizer.clip_grad_norm(c.clip);
      EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(alone->parameters(), c.clip), kTolerance * norm);
      EXPECT_GT(norm, c.clip);
    }
    optimizer.step();
    reference.step();
    optimizer.zero_grad();
    set_gradients_to_none(*alone);
    ASSERT_LT(distance(net, alone), kTolerance) << "step " << step;
  }
}

const torch::optim::AdamWOptions kAdamW = torch::optim::AdamWOptions(0.01).weight_decay(0.1);

TEST(DistributedOptimizer, EqualsAdamWOnOneProcess) {
  expect_equal_to_one_process<torch::optim::AdamW>(kAdamW, {});
}

TEST(DistributedOptimizer, EqualsAdamOnOneProcessAveragingOverRanks) {
  expect_equal_to_one_process<torch::optim::Adam>(torch::optim::AdamOptions(0.01).amsgrad(true),
                                                  {.by_count = false});
}

TEST(DistributedOptimizer, EqualsSgdWithMomentumOnOneProcessWhenAccumulating) {
  const auto options = torch::optim::SGDOptions(0.005).momentum(0.9).nesterov(true);
  expect_equal_to_one_process<torch::optim::SGD>(options, {.micro_batches = 3});
  expect_equal_to_one_process<torch::optim::SGD>(options, {.by_count = false, .micro_batches = 2});
}

TEST(DistributedOptimizer, EqualsRmsPropOnOneProcess) {
  expect_equal_to_one_process<torch::optim::RMSprop>(
      torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true), {});
}

TEST(DistributedOptimizer, ClipsByTheNormOfAllGradients) {
  expect_equal_to_one_process<torch::optim::SGD>(torch::optim::SGDOptions(0.1),
                                                 {.micro_batches = 2, .clip = 0.01});
}

TEST(DistributedOptimizer, GivesAllRanksTheSameBits) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  for (int step = 0; step < 3; ++step) {
    run_backward(ddp, {}, step);
    optimizer.step();
    optimizer.zero_grad(true);
  }
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter));
}

TEST(DistributedOptimizer, KeepsItsShareOfTheState) {
  torch::nn::Sequential net(torch::nn::Linear(100, 300), torch::nn::Tanh(), torch::nn::Linear(300, 50));
  DistributedDataParallelOptions options;
  DistributedDataParallel ddp(net, world(), options);
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(0.01));
  for (int step = 0; step < 3; ++step) {
    ddp.backward(ddp(torch::ones({2, 100})).sum());
    optimizer.step();
    optimizer.zero_grad();
  }
  std::size_t whole = 0;
  for (const auto& parameter : net->parameters()) whole += 2 * parameter.nbytes();
  const auto ranks = static_cast<std::size_t>(world().size());
  EXPECT_GT(optimizer.state_bytes(), whole / ranks * 9 / 10);
  EXPECT_LT(optimizer.state_bytes(), whole / ranks * 11 / 10);
}

TEST(DistributedOptimizer, GivesEachGroupItsOptions) {
  torch::manual_seed(7);
  Net net;
  Net alone = copy_of(net);
  const auto groups_of = [](Net& model) {
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(model->first->parameters());
    for (const auto& part : {model->last->parameters(), model->norm->parameters()})
      groups[0].params().insert(groups[0].params().end(), part.begin(), part.end());
    groups[0].params().push_back(model->out_bias);
    groups.emplace_back(model->middle->parameters(),
                        std::make_unique<torch::optim::SGDOptions>(torch::optim::SGDOptions(0.001)));
    return groups;
  };
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, groups_of(net), torch::optim::SGDOptions(0.1));
  torch::optim::SGD reference(groups_of(alone), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < 4; ++step) {
    if (step == 2) {  // as a scheduler does
      for (torch::optim::Optimizer* one : {static_cast<torch::optim::Optimizer*>(&optimizer.local()),
                                           static_cast<torch::optim::Optimizer*>(&reference)}) {
        static_cast<torch::optim::SGDOptions&>(one->param_groups()[0].options()).lr(0.02);
      }
    }
    run_backward(ddp, {}, step);
    run_backward_alone(alone, {}, step);
    optimizer.step();
    reference.step();
    optimizer.zero_grad();
    set_gradients_to_none(*alone);
  }
  EXPECT_LT(distance(net, alone), kTolerance);
}

// If forward does not use `sometimes`, it has no gradient and must not change, even with momentum.
struct SometimesImpl : torch::nn::Module {
  SometimesImpl() {
    always = register_module("always", torch::nn::Linear(6, 6));
    sometimes = register_module("sometimes", torch::nn::Linear(6, 6));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input, bool all) {
    const auto hidden = always(input);
    return all ? sometimes(hidden) : hidden;
  }
  torch::nn::Linear always = nullptr;
  torch::nn::Linear sometimes = nullptr;
};
TORCH_MODULE(Sometimes);

TEST(DistributedOptimizer, DoesNotChangeUnusedParameters) {
  Sometimes net;
  auto options = small_buckets();
  options.find_unused_parameters = true;
  DistributedDataParallel ddp(net, world(), options);
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  const auto input = rows(3, 5);
  for (int step = 0; step < 4; ++step) {
    const bool all = step == 1;
    const auto before = net->sometimes->weight.detach().clone();
    ddp.backward(ddp(input, all).square().sum());
    optimizer.step();
    optimizer.zero_grad(true);
    EXPECT_EQ(torch::equal(before, net->sometimes->weight), !all) << "step " << step;
  }
}

TEST(DistributedOptimizer, ContinuesFromItsStateWithOtherBuckets) {
  torch::manual_seed(7);
  const Case c{.micro_batches = 2};
  Net net;
  Net alone = copy_of(net);
  torch::optim::AdamW reference(alone->parameters(), kAdamW);
  const auto train_alone = [&](int step) {
    run_backward_alone(alone, c, step);
    reference.step();
    set_gradients_to_none(*alone);
  };
  const std::string file =
      (std::filesystem::temp_directory_path() / fmt::format("lockstep-train-test-{}", world().size()))
          .string();
  {
    DistributedDataParallel ddp(net, world(), small_buckets());
    DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
    for (int step = 0; step < 3; ++step) {
      run_backward(ddp, c, step);
      optimizer.step();
      optimizer.zero_grad();
      train_alone(step);
    }
    static_cast<torch::optim::AdamWOptions&>(optimizer.local().param_groups()[0].options()).lr(0.005);
    static_cast<torch::optim::AdamWOptions&>(reference.param_groups()[0].options()).lr(0.005);
    save_to_file(optimizer, file);

    // It is the same state as that of the optimizer in one process.
    const SavedOptimizer state = state_on_rank_0(optimizer);
    EXPECT_EQ(state.parameters.empty(), world().rank() != 0);
    for (const auto& [name, entries] : state.parameters) {
      const auto parameter = alone->named_parameters()[name];
      const auto& known = static_cast<torch::optim::AdamWParamState&>(
          *reference.state().at(torch_compat::optimizer_key(parameter)));
      EXPECT_EQ(entries.at("step").toInt(), 3);
      EXPECT_LT((entries.at("exp_avg").toTensor() - known.exp_avg()).abs().max().item<double>(), kTolerance)
          << name;
      EXPECT_LT((entries.at("exp_avg_sq").toTensor() - known.exp_avg_sq()).abs().max().item<double>(),
                kTolerance);
    }
  }
  Net resumed = copy_of(net);
  auto options = small_buckets();
  options.first_bucket_bytes = 5000;
  DistributedDataParallel ddp(resumed, world(), options);
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, torch::optim::AdamWOptions(1));
  load_from_file(optimizer, file);
  for (int step = 3; step < 6; ++step) {
    run_backward(ddp, c, step);
    optimizer.step();
    optimizer.zero_grad();
    train_alone(step);
    ASSERT_LT(distance(resumed, alone), kTolerance) << "step " << step;
  }
  any_rank(false);
  if (world().rank() == 0) std::filesystem::remove(file);
}

// The first of these tests runs on one number of ranks, and then the second on another (CMakeLists.txt). A
// resumed job gives the same result as one without interruption.
class Resumed : public ::testing::Test {
 protected:
  void SetUp() override {
    const char* file = std::getenv("LOCKSTEP_TEST_RESUME");
    if (file == nullptr)
      GTEST_SKIP() << "LOCKSTEP_TEST_RESUME is not set; train_test.resume_* runs this test";
    file_ = file;
  }

  // Twelve rows for any number of ranks.
  static torch::Tensor mine(const torch::Tensor& all) {
    const std::int64_t each = 12 / world().size();
    return all.slice(0, each * world().rank(), each * (world().rank() + 1));
  }
  static torch::Tensor inputs(int step) { return rows(12, 300 + static_cast<std::uint64_t>(step)); }
  static torch::Tensor targets(int step) { return rows(12, 400 + static_cast<std::uint64_t>(step)); }

  static void train(DistributedDataParallel<NetImpl>& ddp,
                    DistributedOptimizer<torch::optim::AdamW>& optimizer, int step) {
    ddp.backward(sum_of_squares(ddp(mine(inputs(step))), mine(targets(step))), 12 / world().size());
    optimizer.step();
    optimizer.zero_grad();
  }

  std::string file_;
};

TEST_F(Resumed, JobIsSaved) {
  torch::manual_seed(11);
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  for (int step = 0; step < 3; ++step) train(ddp, optimizer, step);
  save_to_file(optimizer, file_ + ".optimizer");
  if (world().rank() == 0) torch::save(net, file_ + ".model");
}

TEST_F(Resumed, JobContinuesAsOneProcessWould) {
  torch::manual_seed(11);
  Net alone;
  torch::optim::AdamW reference(alone->parameters(), kAdamW);
  Net net;
  torch::load(net, file_ + ".model");
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  load_from_file(optimizer, file_ + ".optimizer");
  for (int step = 0; step < 6; ++step) {
    (sum_of_squares(alone->forward(inputs(step)), targets(step)) / 12.0).backward();
    reference.step();
    set_gradients_to_none(*alone);
    if (step >= 3) train(ddp, optimizer, step);
  }
  EXPECT_LT(distance(net, alone), kTolerance);
}

SavedOptimizer state_of(const torch::optim::OptimizerOptions& options) {
  SavedOptimizer state;
  state.groups.push_back(train::read_options(options));
  return state;
}

TEST(DistributedOptimizer, KeepsOptionsThatAreSetAfterLoading) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.1));
  const auto options = [&]() -> auto& {
    return static_cast<torch::optim::SGDOptions&>(optimizer.local().param_groups()[0].options());
  };
  SavedOptimizer state = state_of(torch::optim::SGDOptions(0.5).momentum(0.9));
  for (const auto& item : net->named_parameters())
    state.parameters[item.key()]["momentum_buffer"] = torch::ones_like(item.value());
  copy_state(state, optimizer);
  EXPECT_EQ(options().lr(), 0.5);
  options().lr(0);
  const SavedOptimizer waiting = state_on_rank_0(optimizer);
  EXPECT_EQ(waiting.parameters.empty(), world().rank() != 0);
  if (world().rank() == 0) {
    auto read = torch::optim::SGDOptions(1);
    train::write_options(waiting.groups.at(0), read);
    EXPECT_EQ(read.lr(), 0);
  }
  const auto before = net->out_bias.detach().clone();
  run_backward(ddp, {}, 0);
  optimizer.step();
  EXPECT_EQ(options().lr(), 0);
  EXPECT_EQ(options().momentum(), 0.9);
  EXPECT_TRUE(torch::equal(net->out_bias, before));
  EXPECT_GT(optimizer.state_bytes(), 0U);
}

TEST(DistributedOptimizer, SavesBeforeTheFirstBackwardOnRankZeroOnly) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  const SavedOptimizer state = state_on_rank_0(optimizer);
  EXPECT_TRUE(state.parameters.empty());
  EXPECT_EQ(state.groups.size(), world().rank() == 0 ? 1U : 0U);
}

TEST(DistributedOptimizer, FindsANaNOnAnyRankInTheMaximumNorm) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  run_backward(ddp, {}, 0);
  if (world().rank() + 1 == world().size()) {
    for (auto& parameter : net->parameters()) parameter.mutable_grad().fill_(std::nan(""));
  }
  const ClipOptions largest{.norm_type = std::numeric_limits<double>::infinity()};
  EXPECT_TRUE(std::isnan(optimizer.clip_grad_norm(1.0, largest)));
}

/// One weight with two names.
struct TiedImpl : torch::nn::Module {
  struct Inner : torch::nn::Module {
    torch::Tensor weight;
  };
  TiedImpl() {
    weight = register_parameter("weight", torch::ones({6, 6}, torch::kDouble));
    inner = register_module("inner", std::make_shared<Inner>());
    inner->weight = inner->register_parameter("weight", weight);
  }
  torch::Tensor forward(const torch::Tensor& input) { return input.matmul(weight).matmul(inner->weight); }
  torch::Tensor weight;
  std::shared_ptr<Inner> inner;
};
TORCH_MODULE(Tied);

TEST(TiedWeights, CountOnce) {
  Tied net;
  ASSERT_EQ(net->parameters().size(), 2U);
  {
    DistributedDataParallel ddp(net, world(), small_buckets());
    ddp.backward(ddp(rows(2, 1)).sum(), 2);
    const double norm = net->weight.grad().norm().item<double>();
    EXPECT_NEAR(clip_grad_norm(net->parameters(), norm / 2), norm, 1e-12 * norm);
    EXPECT_NEAR(net->weight.grad().norm().item<double>(), norm / 2, 1e-5 * norm);
    net->zero_grad();
  }
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::SGD> optimizer(ddp, torch::optim::SGDOptions(0.1));
  ddp.backward(ddp(rows(2, 1)).sum(), 2);
  optimizer.step();
  EXPECT_TRUE(same_bits_everywhere(net->weight));
}

TEST(DistributedOptimizer, DoesNotWorkWithJoin) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  EXPECT_THAT(error_of([&] { ddp.join([] {}); }),
              HasSubstr("cannot take part in DistributedOptimizer's step"));
}

TEST(DistributedOptimizer, RefusesMisuseWithAReason) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  DistributedOptimizer<torch::optim::AdamW> optimizer(ddp, kAdamW);
  EXPECT_THAT(error_of([&] { optimizer.step(); }), HasSubstr("there was no synchronised backward yet"));
  EXPECT_THAT(error_of([&] { DistributedOptimizer<torch::optim::AdamW> second(ddp, kAdamW); }),
              HasSubstr("a model can have one hook"));
  Net other;
  DistributedDataParallel others_ddp(other, world(), small_buckets());
  EXPECT_THAT(error_of([&] {
                DistributedOptimizer<torch::optim::AdamW> wrong(others_ddp, {{net->parameters()}}, kAdamW);
              }),
              HasSubstr("does not belong to the module"));
  EXPECT_THAT(error_of([&] {
                DistributedOptimizer<torch::optim::AdamW> some(others_ddp, {{other->first->parameters()}},
                                                               kAdamW);
              }),
              HasSubstr("parameter 'out_bias' is trained but in none of its groups"));
  SavedOptimizer state = state_of(kAdamW);
  state.parameters["nothing"]["step"] = 1;
  EXPECT_THAT(error_of([&] { copy_state(state, optimizer); }), HasSubstr("'nothing'"));
  EXPECT_THAT(error_of([&] { copy_state(state_of(torch::optim::SGDOptions(1)), optimizer); }),
              HasSubstr("the checkpoint's optimizer options differ"));
  EXPECT_EQ(static_cast<torch::optim::AdamWOptions&>(optimizer.local().param_groups()[0].options()).lr(),
            0.01);
  GradScaler scaler(world());
  EXPECT_THAT(error_of([&] { copy_state(scaler, optimizer); }), HasSubstr("does not have 'groups'"));
}

TEST(ClipGradNorm, EqualsTorchs) {
  for (const double type : {2.0, 1.0, 3.5, std::numeric_limits<double>::infinity()}) {
    Net net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    Net alone = copy_of(net);
    run_backward(ddp, {}, 1);
    run_backward_alone(alone, {}, 1);
    const double norm = clip_grad_norm(net->parameters(), 0.01, {.norm_type = type});
    EXPECT_NEAR(norm, torch::nn::utils::clip_grad_norm_(alone->parameters(), 0.01, type), 1e-9 * norm);
    for (std::size_t i = 0; i < alone->parameters().size(); ++i) {
      const auto difference = net->parameters()[i].grad() - alone->parameters()[i].grad();
      EXPECT_LT(difference.abs().max().item<double>(), kTolerance);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
