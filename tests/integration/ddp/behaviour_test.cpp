// The behaviour of DistributedDataParallel apart from the values of gradients.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "common/error.h"
#include "runtime/comm/control/activity.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Ddp>
void step(Ddp& ddp, int seed) {
  const auto input = rows(5, static_cast<std::uint64_t>(seed * 10 + world().rank()));
  ddp.backward(sum_of_squares(ddp(input), input), 5);
}

TEST(Replicas, StayBitwiseIdenticalOverManySteps) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  torch::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(0.01));
  for (int i = 0; i < 10; ++i) {
    step(ddp, i);
    optimizer.step();
    optimizer.zero_grad();
  }
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter));
}

// The number of operations of the third step. The first ones exchange more.
std::uint64_t operations_of_a_step(DistributedDataParallelOptions options, bool buffers, bool by_count) {
  options.bucket_cap_mb = 1;
  options.first_bucket_bytes = 1 << 20;
  Net net;
  if (buffers) {
    for (const auto type : {torch::kDouble, torch::kLong, torch::kDouble})
      net->register_buffer(fmt::format("buffer{}", net->buffers().size()), torch::zeros({3}, type));
  }
  DistributedDataParallel ddp(net, world(), options);
  std::uint64_t before = 0;
  for (int i = 0; i < 3; ++i) {
    net->zero_grad();
    before = comm::current_activity().asked;
    const auto loss = sum_of_squares(ddp(rows(5, 1)), rows(5, 2));
    if (by_count) {
      ddp.backward(loss, 5);
    } else {
      loss.backward();
    }
  }
  return comm::current_activity().asked - before;
}

TEST(SynchronisedStep, HasOneMessageBesideItsBuckets) {
  for (const bool by_count : {true, false}) {
    DistributedDataParallelOptions options;
    EXPECT_EQ(operations_of_a_step(options, false, by_count), 2U);
    options.find_unused_parameters = true;
    EXPECT_EQ(operations_of_a_step(options, false, by_count), 3U);
    options.find_unused_parameters = false;
    EXPECT_EQ(operations_of_a_step(options, true, by_count), world().size() > 1 ? 3U : 2U)
        << "one for all buffers";
  }
}

TEST(Replicas, StartWithTheParametersOfRankZero) {
  torch::manual_seed(static_cast<std::uint64_t>(world().rank()) + 1);
  Net net;
  EXPECT_EQ(same_bits_everywhere(net->first->weight), world().size() == 1);
  const DistributedDataParallel ddp(net, world());
  for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter));
}

TEST(Overlap, TheFirstReductionStartsBeforeBackwardEnds) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  for (int i = 0; i < 3; ++i) {
    step(ddp, i);
    net->zero_grad();
    const auto& trace = ddp.trace();
    ASSERT_GT(trace.launches.size(), 2U);
    for (std::size_t bucket = 0; bucket < trace.launches.size(); ++bucket)
      EXPECT_EQ(trace.launches[bucket].bucket, bucket);
    if (i == 0) {
      EXPECT_GE(trace.launches.front().asked_ns, trace.backward_ended_ns)
          << "buckets are laid out after the first backward";
    } else {
      EXPECT_LT(trace.launches.front().asked_ns, trace.backward_ended_ns);
    }
    EXPECT_LE(trace.backward_ended_ns, trace.finished_ns);
  }
  // Gradients of the last layers arrive first, so they are in the first bucket.
  EXPECT_THAT(ddp.reducer().layout().front(), ::testing::Contains("out_bias"));
}

TEST(Buckets, AreLaidOutAgainInTheOrderOfArrival) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto before = ddp.reducer().layout();
  step(ddp, 0);
  const auto after = ddp.reducer().layout();
  EXPECT_NE(before, after);
  EXPECT_THAT(after.back(), ::testing::Contains("first.weight"));
  const auto gradient = net->first->weight.grad().clone();
  net->zero_grad();
  step(ddp, 0);
  EXPECT_TRUE(torch::equal(net->first->weight.grad(), gradient)) << "gradients moved with their buckets";
  EXPECT_EQ(ddp.reducer().layout(), after);
}

TEST(Buckets, HoldTheGradientsWithoutACopy) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  step(ddp, 0);
  const void* data = net->out_bias.grad().data_ptr();
  net->zero_grad();
  step(ddp, 1);
  EXPECT_EQ(net->out_bias.grad().data_ptr(), data);
}

struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    left = register_module("left", torch::nn::Linear(6, 6));
    right = register_module("right", torch::nn::Linear(6, 6));
    never = register_module("never", torch::nn::Linear(6, 6));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input, bool use_left) {
    return use_left ? left(input) : right(input);
  }
  torch::nn::Linear left = nullptr;
  torch::nn::Linear right = nullptr;
  torch::nn::Linear never = nullptr;
};
TORCH_MODULE(Branches);

TEST(UnusedParameters, AreAnErrorThatNamesThem) {
  Branches net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto input = rows(2, 1);
  const std::string error = error_of([&] { ddp.backward(ddp(input, true).sum(), 2); });
  EXPECT_THAT(error,
              HasSubstr("parameter 'right.weight' (and 3 more) did not get a gradient in this backward"));
  EXPECT_THAT(error_of([&] { ddp.skip(); }), HasSubstr("backward threw"));
}

// If `breaks` is set, backward throws after the gradient of `after` and before that of `before`.
struct FragileImpl : torch::nn::Module {
  FragileImpl() {
    before = register_module("before", torch::nn::Linear(6, 6));
    after = register_module("after", torch::nn::Linear(6, 6));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& input) {
    auto hidden = before(input);
    if (breaks) hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("broken"); });
    return after(torch::tanh(hidden));
  }
  bool breaks = false;
  torch::nn::Linear before = nullptr;
  torch::nn::Linear after = nullptr;
};
TORCH_MODULE(Fragile);

TEST(BackwardThatThrew, MakesTheNextForwardFail) {
  for (const int broken : {0, 2}) {
    Fragile net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    for (int i = 0; i <= broken; ++i) {
      net->breaks = i == broken;
      EXPECT_THAT(error_of([&] { ddp(rows(2, 1)).sum().backward(); }),
                  HasSubstr(net->breaks ? "broken" : "no error"));
    }
    net->breaks = false;
    EXPECT_THAT(error_of([&] { ddp(rows(2, 1)).sum().backward(); }),
                HasSubstr("construct a new DistributedDataParallel on all ranks"));
    EXPECT_THAT(error_of([&] { ddp.discard(); }), HasSubstr("backward threw"));
    const torch::NoGradGuard no_grad;
    ddp(rows(2, 1));  // an evaluation still works
  }
}

TEST(BackwardThatThrew, ForAMissingGradientMakesTheNextForwardFail) {
  Branches net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1), true).sum().backward(); }),
              HasSubstr("parameter 'right.weight' (and 3 more) did not get a gradient in this backward"));
  EXPECT_THAT(error_of([&] { ddp(rows(2, 1), true).sum().backward(); }), HasSubstr("backward threw"));
}

TEST(BackwardThatThrew, UnderNoSyncCanBeDiscarded) {
  Fragile net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto input = rows(2, static_cast<std::uint64_t>(world().rank()));
  ddp.backward(ddp(input).square().sum(), 2);
  const auto expected = net->before->weight.grad().clone();
  net->zero_grad();
  {
    const auto hold = ddp.no_sync();
    net->breaks = true;
    EXPECT_THAT(error_of([&] { ddp.backward(ddp(input).sum(), 2); }), HasSubstr("broken"));
    net->breaks = false;
  }
  ddp.discard();
  ddp.backward(ddp(input).square().sum(), 2);
  EXPECT_LE((net->before->weight.grad() - expected).abs().max().item<double>(), 1e-14);
}

TEST(Accumulation, ThatIsDiscardedDoesNotChangeTheNextStep) {
  Net net;
  auto options = small_buckets();
  options.find_unused_parameters = true;
  DistributedDataParallel ddp(net, world(), options);
  step(ddp, 0);
  const auto expected = net->first->weight.grad().clone();
  net->zero_grad();
  {
    const auto hold = ddp.no_sync();
    for (int i = 1; i < 4; ++i) step(ddp, i);
  }
  net->out_bias.mutable_grad() = torch::Tensor();
  ddp.discard();
  EXPECT_FALSE(net->out_bias.grad().defined()) << "what is none stays none";
  step(ddp, 0);
  EXPECT_EQ(ddp.tokens_of_last_step(), 5 * world().size());
  EXPECT_LE((net->first->weight.grad() - expected).abs().max().item<double>(), 1e-14);
}

TEST(UnusedParameters, CountAsZeroOnRanksThatDoNotUseThem) {
  Branches net;
  auto options = small_buckets();
  options.find_unused_parameters = true;
  DistributedDataParallel ddp(net, world(), options);
  for (int i = 0; i < 3; ++i) {
    const auto input = torch::ones({1, 6}, torch::kDouble);
    ddp.backward(ddp(input, world().rank() == 0).sum(), 1);
    // Each rank has 1 token; left is used on rank 0 alone.
    const double ranks = world().size();
    EXPECT_NEAR(net->left->weight.grad()[0][0].item<double>(), 1 / ranks, 1e-15);
    if (world().size() > 1) {
      EXPECT_NEAR(net->right->weight.grad()[0][0].item<double>(), (ranks - 1) / ranks, 1e-15);
    }
    EXPECT_FALSE(net->never->weight.grad().defined())
        << "optimizers must not change a parameter that no rank used";
    net->zero_grad();
  }
}

TEST(FrozenParameters, AreInNoBucket) {
  Net net;
  net->middle->weight.set_requires_grad(false);
  DistributedDataParallel ddp(net, world(), small_buckets());
  step(ddp, 0);
  EXPECT_FALSE(net->middle->weight.grad().defined());
  for (const auto& bucket : ddp.reducer().layout())
    EXPECT_THAT(bucket, ::testing::Not(::testing::Contains("middle.weight")));
}

TEST(Misuse, IsRefusedWithARemedy) {
  const auto input = rows(2, 3);
  {
    Net net;
    DistributedDataParallel ddp(net, world(), small_buckets());
    EXPECT_THAT(error_of([&] { ddp(input).sum().backward({}, true, /*create_graph=*/true); }),
                HasSubstr("create_graph"));
  }
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  EXPECT_THAT(error_of([&] { ddp.backward(ddp(input), 2); }), HasSubstr("exactly one element"));
  EXPECT_THAT(error_of([&] { ddp.backward(torch::ones({}), 2); }), HasSubstr("call skip()"));
  EXPECT_THAT(error_of([&] { ddp.backward(ddp(input).sum(), -1); }), HasSubstr("must not be negative"));
}

TEST(Buffers, FollowRankZeroBeforeForward) {
  torch::nn::BatchNorm1d norm(6);
  norm->to(torch::kDouble);
  DistributedDataParallel ddp(norm, world(), small_buckets());
  for (int i = 0; i < 2; ++i) {
    step(ddp, i);
    norm->zero_grad();
  }
  EXPECT_EQ(same_bits_everywhere(norm->running_mean), world().size() == 1) << "each rank saw its own rows";
  ddp.skip();
  EXPECT_TRUE(same_bits_everywhere(norm->running_mean));
  EXPECT_TRUE(same_bits_everywhere(norm->running_var));
  EXPECT_TRUE(same_bits_everywhere(norm->num_batches_tracked));
}

TEST(Buffers, AreNotSentByAForwardWithoutGradientsOnOneRank) {
  torch::nn::BatchNorm1d norm(6);
  norm->to(torch::kDouble);
  DistributedDataParallel ddp(norm, world(), small_buckets());
  step(ddp, 0);
  if (world().rank() == 0) {
    const torch::NoGradGuard no_grad;
    ddp(rows(4, 1));  // in training mode, on this rank alone
  }
  norm->zero_grad();
  step(ddp, 1);
}

TEST(Module, KeepsItsNamesAndItsForward) {
  torch::nn::Sequential layers(torch::nn::Linear(6, 4), torch::nn::ReLU(), torch::nn::Linear(4, 6));
  DistributedDataParallel ddp(layers, world());
  EXPECT_EQ(ddp(torch::ones({2, 6})).sizes(), torch::IntArrayRef({2, 6}));
  std::vector<std::string> names;
  for (const auto& entry : layers->named_parameters()) names.push_back(entry.key());
  EXPECT_THAT(names, ElementsAre("0.weight", "0.bias", "2.weight", "2.bias"));
  EXPECT_EQ(ddp->named_parameters().size(), 4U);

  std::stringstream saved;
  torch::save(layers, saved);
  torch::nn::Sequential loaded(torch::nn::Linear(6, 4), torch::nn::ReLU(), torch::nn::Linear(4, 6));
  torch::load(loaded, saved);
  EXPECT_TRUE(torch::equal(loaded->parameters()[0], layers->parameters()[0]));
}

TEST(Gradients, OutliveTheirBuckets) {
  Net net;
  torch::Tensor later;
  {
    DistributedDataParallel ddp(net, world(), small_buckets());
    step(ddp, 0);
    later = net(rows(1, 1)).sum();  // its graph keeps the gradient accumulators, which have hooks
  }
  EXPECT_GT(net->out_bias.grad().abs().sum().item<double>(), 0);
  later.backward();
  net(rows(1, 1)).sum().backward();
}

TEST(StepTime, SplitsIntoForwardBackwardAndExposedCommunication) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  world().timer().begin_step();
  step(ddp, 0);
  world().timer().end_step({.tokens = 5, .samples = 1, .padding = 0});
  const auto& times = world().timer().last_step();
  const auto phase = [&](profile::Phase which) { return times.phase_ns[static_cast<std::size_t>(which)]; };
  EXPECT_GT(phase(profile::Phase::forward), 0U);
  EXPECT_GT(phase(profile::Phase::backward), 0U);
  EXPECT_GT(phase(profile::Phase::comm_exposed), 0U);
}

}  // namespace
}  // namespace lockstep::testing
