// The constructor compares the models and options of all ranks, and names a difference on every rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

bool last_rank() {
  return world().size() > 1 && world().rank() == world().size() - 1;
}

/// Expects an error on every rank if the last rank's model or options differ from the others'.
template <typename Module>
void expect_refusal(Module& net, const DistributedDataParallelOptions& options, const std::string& values) {
  if (world().size() == 1) return;
  EXPECT_THAT(error_of([&] { const DistributedDataParallel ddp(net, world(), options); }),
              HasSubstr("the ranks' models differ: " + values + " on rank " +
                        std::to_string(world().size() - 1) + ";"));
}

TEST(Replicas, WithDifferentOptionsAreRefusedByNameWithBothValues) {
  {
    Net net;
    auto options = small_buckets();
    options.bucket_cap_mb = last_rank() ? 1.5 : 2;
    expect_refusal(net, options, "option bucket_cap_mb is 2 on rank 0 and 1.5");
  }
  {
    Net net;
    auto options = small_buckets();
    options.find_unused_parameters = last_rank();
    expect_refusal(net, options, "option find_unused_parameters is false on rank 0 and true");
  }
}

TEST(Replicas, ThatDifferAreRefusedByNameOnEveryRank) {
  const struct {
    const char* difference;
    void (*make)(Net& net);
    const char* values;
  } cases[] = {
      {"a parameter of another shape", [](Net& net) { net = Net(last_rank() ? 9 : 8); },
       "parameter 1 is 'last.weight' Double [8, 8] on rank 0 and 'last.weight' Double [9, 9]"},
      {"an additional parameter",
       [](Net& net) {
         if (last_rank()) net->register_module("zero", torch::nn::Linear(2, 2));
       },
       "parameter 9 is missing on rank 0 and 'zero.weight' Float [2, 2]"},
      {"a buffer of another type",
       [](Net& net) {
         net->register_buffer("same", torch::zeros({2}));
         net->register_buffer("counts", torch::zeros({4}, last_rank() ? torch::kInt : torch::kFloat));
       },
       "buffer 1 is 'counts' Float [4] on rank 0 and 'counts' Int [4]"},
      {"a buffer of another size",
       [](Net& net) { net->register_buffer("counts", torch::zeros({last_rank() ? 5 : 4})); },
       "buffer 0 is 'counts' Float [4] on rank 0 and 'counts' Float [5]"},
      {"a missing buffer",
       [](Net& net) {
         if (!last_rank()) net->register_buffer("counts", torch::zeros({4}));
       },
       "buffer 0 is 'counts' Float [4] on rank 0 and missing"},
      {"an expanded buffer",
       [](Net& net) {
         const auto mask = torch::ones({1, 3}).expand({4, 3});
         net->register_buffer("mask", last_rank() ? mask : mask.clone());
       },
       "buffer 0 is 'mask' Float [4, 3] on rank 0 and 'mask' Float [4, 3] with strides [0, 1]"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.difference);
    Net net;
    each.make(net);
    expect_refusal(net, small_buckets(), each.values);
  }
}

TEST(Replicas, WithTensorsThatCannotBeSentAreRefusedByName) {
  const auto refusal = [](const char* name, const torch::Tensor& tensor, bool is_parameter = false) {
    Net net;
    if (is_parameter) net->register_parameter(name, tensor);
    if (!is_parameter) net->register_buffer(name, tensor);
    return error_of([&] { const DistributedDataParallel ddp(net, world()); });
  };
  EXPECT_THAT(refusal("gain", torch::ones({1}, torch::kDouble).expand({6}).detach(), true),
              HasSubstr("parameter 'gain' is expanded"));
  EXPECT_THAT(refusal("mask", torch::ones({1, 3}).expand({4, 3})), HasSubstr("buffer 'mask' is expanded"));
  EXPECT_THAT(refusal("adjacency", torch::eye(3).to_sparse()), HasSubstr("buffer 'adjacency' is Sparse"));
  EXPECT_THAT(refusal("table", torch::empty({2}, torch::kMeta)), HasSubstr("buffer 'table' is on meta"));
}

TEST(TwoModelsInARow, ByTokensAreRefusedWithTheReason) {
  Net first;
  Net second;
  DistributedDataParallel ddp_first(first, world(), small_buckets());
  DistributedDataParallel ddp_second(second, world(), small_buckets());
  const auto input = rows(2, 1);
  const std::string error = error_of([&] { ddp_second.backward(ddp_second(ddp_first(input)).sum(), 2); });
  EXPECT_THAT(error, HasSubstr("of one DistributedDataParallel reached parameter 'out_bias' of another"));
}

TEST(TwoModelsInARow, AveragedOverRanksGiveTheGradientsOfOneProcess) {
  Net first;
  Net second;
  DistributedDataParallel ddp_first(first, world(), small_buckets());
  DistributedDataParallel ddp_second(second, world(), small_buckets());
  Net alone_first = copy_of(first);
  Net alone_second = copy_of(second);
  for (int step = 0; step < 3; ++step) {
    const auto input = rows(2 * world().size(), 1 + static_cast<std::uint64_t>(step));
    ddp_second.backward(torch::mse_loss(ddp_second(ddp_first(my_part(input))), my_part(input)));
    torch::mse_loss(alone_second(alone_first(input)), input).backward();
    EXPECT_LE(gradient_difference(*first, *alone_first), 1e-12);
    EXPECT_LE(gradient_difference(*second, *alone_second), 1e-12);
    for (auto* net : {&first, &second, &alone_first, &alone_second}) (*net)->zero_grad();
  }
}

TEST(Buffers, AreSentBeforeAnEvaluationIfAsked) {
  torch::nn::BatchNorm1d norm(6);
  norm->to(torch::kDouble);
  DistributedDataParallel ddp(norm, world(), small_buckets());
  for (int i = 0; i < 2; ++i) {
    const auto input = rows(5, static_cast<std::uint64_t>(10 * i + world().rank()));
    ddp.backward(sum_of_squares(ddp(input), input), 5);
    norm->zero_grad();
  }
  const auto mine = norm->running_mean.clone();
  norm->eval();
  ddp.broadcast_buffers();
  for (const auto& buffer : norm->buffers()) EXPECT_TRUE(same_bits_everywhere(buffer));
  EXPECT_EQ(torch::equal(norm->running_mean, mine), world().rank() == 0);
  DistributedDataParallel other(norm, world(), small_buckets());
  EXPECT_THAT(error_of([&] { other.join([&] { other.broadcast_buffers(); }); }), HasSubstr("inside join"));
}

// Trains; after `drift_after` steps the last rank changes one weight a little.
std::string train_with_drift(Net& net, int steps, int drift_after, bool by_count) {
  auto options = small_buckets();
  options.check_replicas_every = 2;
  DistributedDataParallel ddp(net, world(), options);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  return error_of([&] {
    for (int i = 0; i < steps; ++i) {
      const auto input = rows(4, static_cast<std::uint64_t>(i * 10 + world().rank()));
      if (by_count) {
        ddp.backward(sum_of_squares(ddp(input), input), 4);
      } else {
        sum_of_squares(ddp(input), input).backward();
      }
      if (i % 3 != 2) optimizer.step();  // a skipped step must not be counted
      optimizer.zero_grad();
      if (i + 1 == drift_after && last_rank()) net->middle->weight.data()[3][5] += 1e-9;
    }
  });
}

TEST(ReplicaDrift, EndsTheJobNamingRankNodeAndParameter) {
  for (const bool by_count : {true, false}) {
    Net net;
    const std::string error = train_with_drift(net, 5, 2, by_count);
    if (world().size() == 1) {
      EXPECT_EQ(error, "no error");
      continue;
    }
    EXPECT_THAT(error, HasSubstr(fmt::format("rank {} on ", world().size() - 1)));
    EXPECT_THAT(error, HasSubstr("'middle.weight' by up to 1e-09; such ranks"));
  }
}

TEST(ReplicaDrift, IsFoundInAnyPartOfTheParametersAndTheLargestIsNamed) {
  if (world().size() == 1) GTEST_SKIP() << "needs 2 ranks";
  for (const auto& [weight, bias] : {std::pair(1e-6, 0.0), std::pair(0.0, 1e-9), std::pair(1e-6, 1e-9)}) {
    Net net(
        400);  // a weight is larger than a piece that is hashed at a time, and middle.bias is the last one
    DistributedDataParallel ddp(net, world(), {.check_replicas_every = 1});
    if (world().rank() == 1) {
      net->middle->weight.data()[399][399] += weight;
      net->middle->bias.data()[399] += bias;
    }
    const std::string error = error_of([&] { ddp(rows(2, 1)).sum().backward(); });
    EXPECT_THAT(error, HasSubstr(": rank 1 on "));
    EXPECT_THAT(error,
                HasSubstr(weight > 0 ? "'middle.weight' by up to 1e-06" : "'middle.bias' by up to 1e-09"));
  }
}

TEST(ReplicaDrift, IsNotLookedForIfTheUserWishes) {
  Net net;
  auto options = small_buckets();
  options.check_replicas_every = 0;
  DistributedDataParallel ddp(net, world(), options);
  if (last_rank()) net->middle->weight.data()[3][5] += 1e-9;
  const auto input = rows(4, 1);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(error_of([&] { ddp.backward(sum_of_squares(ddp(input), input), 4); }), "no error");
    net->zero_grad();
  }
}

struct WithLimitImpl : torch::nn::Module {
  WithLimitImpl() {
    table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 4).max_norm(0.5)));
  }
  torch::Tensor forward(const torch::Tensor& ids) { return table(ids); }
  torch::nn::Embedding table = nullptr;
};
TORCH_MODULE(WithLimit);

TEST(Replicas, WhoseForwardChangesParametersAreRefusedByName) {
  WithLimit net;
  DistributedDataParallel ddp(net, world());
  const std::string error = error_of([&] { ddp(torch::full({2}, world().rank(), torch::kLong)); });
  EXPECT_THAT(error,
              HasSubstr("forward changed the values of parameter 'table.weight', as torch::nn::Embedding"));
}

struct WithGapsImpl : torch::nn::Module {
  WithGapsImpl() {
    weight = register_parameter("weight", torch::ones({6, 12}, torch::kDouble).slice(1, 0, 12, 2));
  }
  torch::Tensor forward(const torch::Tensor& input) { return torch::matmul(input, weight); }
  torch::Tensor weight;
};
TORCH_MODULE(WithGaps);

// Such as averaged weights for an evaluation on one rank.
TEST(Replicas, OneRankMayChangeParametersAndChangeThemBack) {
  WithGaps net;
  DistributedDataParallel ddp(net, world());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.01));
  const auto input = rows(4, 1);
  for (int i = 0; i < 3; ++i) {
    ddp.backward(sum_of_squares(ddp(input), input), 4);
    optimizer.step();
    optimizer.zero_grad();
    if (!last_rank()) continue;
    const torch::NoGradGuard no_grad;
    const torch::Tensor before = net->weight.clone();
    net->weight.fill_(7);
    net->weight.copy_(before);
  }
  EXPECT_TRUE(same_bits_everywhere(net->weight));
}

}  // namespace
}  // namespace lockstep::testing
