// Ranks may have different numbers of unsynchronised micro-batches in a step, including none. The gradients
// are those of one process on the whole step.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/checkpoint.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

constexpr double kTolerance = 1e-12;
constexpr int kSteps = 25;
constexpr int kMaxMicroBatches = 5;

struct Case {
  const char* name;
  bool find_unused = false;
  bool static_graph = false;
  bool checkpoints = false;
  bool buffers = false;
  bool own_gradients = false;  // gradient_as_bucket_view is off
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.name;
}

/// `first` is used twice. The micro-batch decides about `left` and `right`. With buffers, the result of
/// forward depends on all micro-batches of this rank since rank 0's buffers were sent.
struct RankBranchesImpl : torch::nn::Module {
  explicit RankBranchesImpl(const Case& c, bool recomputes)
      : recompute(recomputes), has_never(c.find_unused || c.static_graph) {
    first = register_module("first", torch::nn::Linear(6, 6));
    middle = register_module("middle", torch::nn::Linear(6, 6));
    left = register_module("left", torch::nn::Linear(6, 6));
    right = register_module("right", torch::nn::Linear(6, 6));
    if (has_never) never = register_module("never", torch::nn::Linear(6, 6));
    if (c.buffers) mean = register_buffer("mean", torch::zeros({6}));
    to(torch::kDouble);
    segment = [this](const torch::Tensor& x) { return torch::tanh(middle(torch::tanh(first(x)))); };
  }

  torch::Tensor forward(const torch::Tensor& input, bool use_left, bool use_right) {
    auto hidden = torch::tanh(first(input));
    if (mean.defined()) {
      const torch::NoGradGuard no_grad;
      mean.mul_(0.75).add_(hidden.mean(0), 0.25);
    }
    if (mean.defined()) hidden = hidden - mean.clone();
    hidden = hidden + (recompute ? Checkpoint::apply(hidden, &segment) : segment(hidden));
    torch::Tensor output = hidden;
    if (use_left) output = output + left(hidden);
    if (use_right) output = output + right(torch::tanh(hidden));
    return output;
  }

  bool recompute;
  bool has_never;
  torch::nn::Linear first = nullptr;
  torch::nn::Linear middle = nullptr;
  torch::nn::Linear left = nullptr;
  torch::nn::Linear right = nullptr;
  torch::nn::Linear never = nullptr;
  torch::Tensor mean;
  Segment segment;
};
TORCH_MODULE(RankBranches);

struct MicroBatch {
  std::int64_t rows = 1;
  std::uint64_t seed = 0;
  bool left = true;
  bool right = true;

  torch::Tensor input() const { return testing::rows(rows, seed); }
  torch::Tensor target() const { return testing::rows(rows, seed + 1'000'000); }
};

/// One rank's part of a step.
struct Part {
  std::vector<MicroBatch> micro_batches;
  bool ends_with_skip = false;  // all micro-batches are under no_sync(), and a skip() synchronises
};

// Draws the parts of all ranks, the same on all ranks. At least one rank has a micro-batch.
std::vector<Part> draw_step(const Case& c, std::mt19937_64& random) {
  const auto below = [&random](std::uint64_t n) { return static_cast<int>(random() % n); };
  std::vector<Part> parts(static_cast<std::size_t>(world().size()));
  const std::size_t busy = random() % parts.size();
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    const bool none = rank != busy && below(5) == 0;
    const int count = none ? 0 : 1 + below(kMaxMicroBatches);
    for (int m = 0; m < count; ++m) {
      parts[rank].micro_batches.push_back({.rows = 1 + below(4), .seed = random() % 1'000'000});
      if (!c.find_unused) continue;
      parts[rank].micro_batches.back().left = below(2) == 0;
      parts[rank].micro_batches.back().right = below(3) == 0;
    }
    parts[rank].ends_with_skip = none || below(4) == 0;
  }
  return parts;
}

template <typename Ddp>
void run(Ddp& ddp, const Part& part) {
  for (std::size_t m = 0; m < part.micro_batches.size(); ++m) {
    const auto& batch = part.micro_batches[m];
    const auto hold = ddp.no_sync_unless(m + 1 == part.micro_batches.size() && !part.ends_with_skip);
    ddp.backward(sum_of_squares(ddp(batch.input(), batch.left, batch.right), batch.target()), batch.rows);
  }
  if (part.ends_with_skip) ddp.skip();
}

// Runs the parts of all ranks in one process, each with the buffers of rank 0 at the beginning of the step.
std::int64_t run_alone(RankBranches& alone, const std::vector<Part>& parts) {
  std::int64_t tokens = 0;
  for (const auto& part : parts) {
    for (const auto& batch : part.micro_batches) tokens += batch.rows;
  }
  const auto before = alone->mean.defined() ? alone->mean.clone() : torch::Tensor();
  torch::Tensor of_rank_0;
  for (const auto& part : parts) {
    if (before.defined()) alone->mean.copy_(before);
    for (const auto& batch : part.micro_batches) {
      const auto loss = sum_of_squares(alone(batch.input(), batch.left, batch.right), batch.target());
      (loss / static_cast<double>(tokens)).backward();
    }
    if (before.defined() && !of_rank_0.defined()) of_rank_0 = alone->mean.clone();
  }
  if (before.defined()) alone->mean.copy_(of_rank_0);
  return tokens;
}

void expect_same_gradients(torch::nn::Module& net, torch::nn::Module& alone, int step) {
  const auto theirs = alone.named_parameters();
  double largest = 0;
  for (const auto& entry : theirs) {
    if (entry->grad().defined()) largest = std::max(largest, entry->grad().abs().max().item<double>());
  }
  std::vector<torch::Tensor> gradients;
  for (const auto& entry : net.named_parameters()) {
    const auto& expected = theirs[entry.key()].grad();
    ASSERT_EQ(entry->grad().defined(), expected.defined()) << entry.key() << " in step " << step;
    if (!expected.defined()) continue;
    EXPECT_LE((entry->grad() - expected).abs().max().item<double>(), kTolerance * largest)
        << entry.key() << " in step " << step;
    gradients.push_back(entry->grad().reshape({-1}));
  }
  EXPECT_TRUE(same_bits_everywhere(torch::cat(gradients))) << "step " << step;
}

class UnequalMicroBatches : public ::testing::TestWithParam<Case> {};

TEST_P(UnequalMicroBatches, GiveTheGradientsOfOneProcessOnTheWholeStep) {
  const Case& c = GetParam();
  auto options = small_buckets();
  options.find_unused_parameters = c.find_unused;
  options.static_graph = c.static_graph;
  options.gradient_as_bucket_view = !c.own_gradients;
  RankBranches net(c, c.checkpoints);
  DistributedDataParallel ddp(net, world(), options);
  RankBranches alone(c, false);
  copy_parameters(*net, *alone);
  torch::optim::SGD optimizer(net->parameters(), 0.02);
  torch::optim::SGD alone_optimizer(alone->parameters(), 0.02);
  std::mt19937_64 random(7);
  for (int step = 0; step < kSteps; ++step) {
    const auto parts = draw_step(c, random);
    run(ddp, parts[static_cast<std::size_t>(world().rank())]);
    const auto tokens = run_alone(alone, parts);
    EXPECT_EQ(ddp.tokens_of_last_step(), tokens);
    ASSERT_NO_FATAL_FAILURE(expect_same_gradients(*net, *alone, step));
    optimizer.step();
    alone_optimizer.step();
    // The .grad of a parameter that no rank used stays none or zero.
    if (c.find_unused || c.static_graph || step % 2 == 0) {
      set_gradients_to_none(*net);
      set_gradients_to_none(*alone);
    } else {
      net->zero_grad();
      alone->zero_grad();
    }
  }
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter));
}

// Without find_unused every micro-batch uses all parameters.
INSTANTIATE_TEST_SUITE_P(
    Features, UnequalMicroBatches,
    ::testing::Values(
        Case{.name = "Plain"}, Case{.name = "UnusedParameters", .find_unused = true},
        Case{.name = "StaticGraph", .static_graph = true}, Case{.name = "Checkpointing", .checkpoints = true},
        Case{.name = "StaticGraphCheckpointing", .static_graph = true, .checkpoints = true},
        Case{.name = "Buffers", .buffers = true},
        Case{.name = "UnusedParametersAndBuffers", .find_unused = true, .buffers = true},
        Case{.name = "UnusedParametersAndOwnGradients", .find_unused = true, .own_gradients = true},
        Case{.name = "StaticGraphCheckpointingAndBuffers",
             .static_graph = true,
             .checkpoints = true,
             .buffers = true}),
    [](const auto& test) { return test.param.name; });

TEST(Steps, AreNotCountedForChangesThatOneRankUndoes) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  EXPECT_EQ(world().communicator().step(), 0) << "the steps of earlier models do not count";
  const auto input = rows(2, 1);
  for (int i = 0; i < 2; ++i) {
    ddp.backward(sum_of_squares(ddp(input), input), 2);
    EXPECT_EQ(world().communicator().step(), 1);
    net->zero_grad();
    if (world().rank() != 0) continue;
    const torch::NoGradGuard no_grad;  // an evaluation with averaged weights
    for (auto& parameter : net->parameters()) {
      const auto own = parameter.clone();
      parameter.zero_();
      parameter.copy_(own);
    }
  }
}

}  // namespace
}  // namespace lockstep::testing
