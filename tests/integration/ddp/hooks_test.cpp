// Communication hooks; sparse gradients are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/ddp/hooks/compression.h"
#include "runtime/ddp/reducer.h"
#include "tests/integration/ddp/models.h"

namespace lockstep::testing {
namespace {

using ::testing::HasSubstr;

/// The example in comm_hook.h.
class Mean : public CommHook {
 public:
  CommFuture start(GradBucket& bucket, comm::Communicator& ranks) override {
    order.push_back(bucket.index());
    last_seen = last_seen || bucket.is_last();
    EXPECT_EQ(bucket.gradients().size(), bucket.parameters().size());
    return {{ranks.all_reduce(bucket.memory(), "mean", {.op = comm::ReduceOp::average})}, {}};
  }
  void buckets_changed() override { ++changes; }

  std::vector<std::size_t> order;
  bool last_seen = false;
  int changes = 0;
};

/// The largest difference from the gradients of one process on the whole batch, over some steps, relative to
/// the largest gradient.
double difference_under(const std::shared_ptr<CommHook>& hook, torch::ScalarType type,
                        bool by_count = false) {
  Net net;
  net->to(type);
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.register_comm_hook(hook);
  Net alone = copy_of(net);
  double difference = 0;
  for (int step = 0; step < 4; ++step) {
    const auto input = rows(3 * world().size(), 700 + static_cast<std::uint64_t>(step));
    const auto mine = my_part(input).to(type);
    if (!by_count) {
      torch::mse_loss(ddp(mine), mine).backward();
      torch::mse_loss(alone(input), input).backward();
    } else {
      ddp.backward(sum_of_squares(ddp(mine), mine), mine.numel());
      (sum_of_squares(alone(input), input) / static_cast<double>(input.numel())).backward();
    }
    difference = std::max(difference, gradient_difference(*net, *alone));
    for (const auto& parameter : net->parameters()) EXPECT_TRUE(same_bits_everywhere(parameter.grad()));
    net->zero_grad();
    alone->zero_grad();
  }
  return difference;
}

TEST(CommHook, OfTheUserAlsoDivides) {
  const auto hook = std::make_shared<Mean>();
  EXPECT_LE(difference_under(hook, torch::kDouble), 1e-12);
  EXPECT_TRUE(hook->last_seen);
  EXPECT_EQ(hook->changes, 1) << "when buckets are laid out in the order of arrival";
  EXPECT_EQ(hook->order[0], 0U);
  EXPECT_EQ(hook->order[1], 1U);
}

TEST(CommHook, WorksWithAveragingByCount) {
  EXPECT_LE(difference_under(std::make_shared<Mean>(), torch::kDouble, true), 1e-12);
}

/// The mean of the ranks' sums.
class SumThenMean : public CommHook {
 public:
  CommFuture start(GradBucket& bucket, comm::Communicator& ranks) override {
    const auto mean = [memory = bucket.memory(), gradients = bucket.buffer(), &ranks]() -> CommFuture {
      return {{ranks.all_reduce(memory, "mean", {.op = comm::ReduceOp::average})},
              [gradients, size = ranks.size()]() -> CommFuture {
                gradients.div_(size);
                return {};
              }};
    };
    return {{ranks.all_reduce(bucket.memory(), "sum")}, mean};
  }
};

TEST(CommHook, MayStartOperationsAfterItsFirstOnes) {
  EXPECT_LE(difference_under(std::make_shared<SumThenMean>(), torch::kDouble), 1e-12);
}

TEST(CommHook, CompressesToHalvesWithinTheirRounding) {
  EXPECT_LE(difference_under(fp16_compress_hook(), torch::kFloat), 1.0 / 1024);
  EXPECT_LE(difference_under(fp16_compress_hook(), torch::kFloat, true), 1.0 / 1024);
  EXPECT_GT(difference_under(fp16_compress_hook(), torch::kFloat), 1e-5) << "it was not compressed";
  EXPECT_LE(difference_under(bf16_compress_hook(), torch::kFloat), 1.0 / 128);
  EXPECT_GT(difference_under(bf16_compress_hook(), torch::kFloat), 1e-5) << "it was not compressed";
}

TEST(CommHook, CompressesBucketsThatChangeAfterAStepWithoutRankZero) {
  Net net;
  net->to(torch::kFloat);
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.register_comm_hook(fp16_compress_hook());
  Net alone = copy_of(net);
  for (int step = 0; step < 3; ++step) {
    const auto input = rows(3, static_cast<std::uint64_t>(step));
    if (step == 0 && world().rank() == 0 && world().size() > 1) {
      ddp.skip();
    } else {
      const auto mine = input.to(torch::kFloat);
      ddp.backward(sum_of_squares(ddp(mine), mine), mine.numel());
    }
    (sum_of_squares(alone(input), input) / static_cast<double>(input.numel())).backward();
    EXPECT_LE(gradient_difference(*net, *alone), 1.0 / 1024) << "step " << step;
    net->zero_grad();
    alone->zero_grad();
  }
}

TEST(CommHook, CanBeRegisteredOnceAndBeforeBackward) {
  Net net;
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.register_comm_hook(fp16_compress_hook());
  EXPECT_THAT(error_of([&] { ddp.register_comm_hook(fp16_compress_hook()); }), HasSubstr("one hook"));
  Net other;
  DistributedDataParallel late(other, world(), small_buckets());
  late(rows(1, 1)).sum().backward();
  EXPECT_THAT(error_of([&] { late.register_comm_hook(fp16_compress_hook()); }), HasSubstr("before"));
}

struct OwnTableImpl : torch::nn::Module {
  OwnTableImpl() { table = register_parameter("table", torch::randn({5, 3})); }
  torch::Tensor forward(const torch::Tensor& ids) { return torch::embedding(table, ids, -1, false, true); }
  torch::Tensor table;
};
TORCH_MODULE(OwnTable);

TEST(SparseGradients, AreRefusedByName) {
  const auto refusal = [](auto net) {
    DistributedDataParallel ddp(net, world());
    return error_of([&] { ddp.backward(ddp(torch::zeros({2}, torch::kLong)).sum(), 2); });
  };
  EXPECT_THAT(refusal(torch::nn::Embedding(torch::nn::EmbeddingOptions(5, 3).sparse(true))),
              HasSubstr("parameter 'weight' has a sparse gradient"));
  EXPECT_THAT(refusal(OwnTable()), HasSubstr("parameter 'table' has a sparse gradient"));
}

}  // namespace
}  // namespace lockstep::testing
