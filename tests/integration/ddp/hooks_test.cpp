// Communication hooks, and sparse gradients.
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

TEST(CommHook, CompressesToHalvesWithinTheirRounding) {
  EXPECT_LE(difference_under(fp16_compress_hook(), torch::kFloat), 1.0 / 1024);
  EXPECT_LE(difference_under(fp16_compress_hook(), torch::kFloat, true), 1.0 / 1024);
  EXPECT_GT(difference_under(fp16_compress_hook(), torch::kFloat), 1e-5) << "it was not compressed";
  EXPECT_LE(difference_under(bf16_compress_hook(), torch::kFloat), 1.0 / 128);
  EXPECT_GT(difference_under(bf16_compress_hook(), torch::kFloat), 1e-5) << "it was not compressed";
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

/// An embedding and a layer after it.
struct WordsImpl : torch::nn::Module {
  explicit WordsImpl(bool sparse, torch::ScalarType type = torch::kDouble) {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(30, 6).sparse(sparse)));
    layer = register_module("layer", torch::nn::Linear(6, 6));
    to(type);
  }
  torch::Tensor forward(const torch::Tensor& ids) { return layer(torch::tanh(words(ids))); }
  torch::nn::Embedding words = nullptr;
  torch::nn::Linear layer = nullptr;
};
TORCH_MODULE(Words);

torch::Tensor ids_of(int rank, int step) {
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 3 + rank; ++i) ids.push_back((rank * 7 + step * 3 + i * i) % 30);
  ids.push_back(ids.front());  // a row that is used twice
  return torch::tensor(ids, torch::kLong);
}

void check_sparse(bool as_view, bool skip_first_rank) {
  auto options = small_buckets();
  options.gradient_as_bucket_view = as_view;
  Words net(true);
  DistributedDataParallel ddp(net, world(), options);
  Words alone(false);
  copy_parameters(*net, *alone);
  const auto skips = [&](int rank) { return skip_first_rank && rank == 0 && world().size() > 1; };
  for (int step = 0; step < 3; ++step) {
    torch::Tensor whole = torch::zeros({}, torch::kDouble);
    std::int64_t tokens = 0;
    for (int m = 0; m < 2; ++m) {
      for (int rank = 0; rank < world().size(); ++rank) {
        if (skips(rank)) continue;
        const auto ids = ids_of(rank, 2 * step + m);
        whole = whole + alone(ids).square().sum();
        tokens += ids.numel();
      }
      const auto hold = ddp.no_sync_unless(m == 1);
      if (skips(world().rank())) {
        ddp.skip();
      } else {
        const auto ids = ids_of(world().rank(), 2 * step + m);
        ddp.backward(ddp(ids).square().sum(), ids.numel());
      }
    }
    (whole / static_cast<double>(tokens)).backward();
    const auto gradient = net->words->weight.grad();
    ASSERT_TRUE(gradient.is_sparse());
    EXPECT_LT(gradient._nnz(), 30) << "rows that no rank used are not sent";
    EXPECT_LE((gradient.to_dense() - alone->words->weight.grad()).abs().max().item<double>(), 1e-12);
    EXPECT_TRUE(same_bits_everywhere(gradient.to_dense()));
    EXPECT_LE((net->layer->weight.grad() - alone->layer->weight.grad()).abs().max().item<double>(), 1e-12);
    set_gradients_to_none(*net);
    alone->zero_grad();
  }
}

TEST(SparseGradients, AreThoseOfOneProcess) {
  check_sparse(true, false);
  check_sparse(false, false);
}

TEST(SparseGradients, CountAsEmptyOnRanksThatSkip) {
  check_sparse(true, true);
}

TEST(SparseGradients, AreEmptyIfAllRanksSkip) {
  Words net(true);
  DistributedDataParallel ddp(net, world(), small_buckets());
  ddp.skip();
  EXPECT_EQ(net->words->weight.grad()._nnz(), 0);
}

TEST(SparseGradients, AreInNoBucketOfAHook) {
  Words net(true);
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto hook = std::make_shared<Mean>();
  ddp.register_comm_hook(hook);
  for (int step = 0; step < 3; ++step) {
    hook->order.clear();
    hook->last_seen = false;
    ddp.backward(ddp(ids_of(0, step)).sum(), 4);
    for (std::size_t i = 0; i < hook->order.size(); ++i) EXPECT_EQ(hook->order[i], i);
    EXPECT_TRUE(hook->last_seen);
    set_gradients_to_none(*net);
  }
}

TEST(SparseGradients, OfHalvesAreSummedAsFloat) {
  Words net(true, torch::kBFloat16);
  DistributedDataParallel ddp(net, world(), small_buckets());
  const auto ids = torch::zeros({4}, torch::kLong);
  ddp.backward(ddp(ids).sum(), 4);
  EXPECT_EQ(net->words->weight.grad().scalar_type(), torch::kBFloat16);
  EXPECT_TRUE(same_bits_everywhere(net->words->weight.grad().to_dense()));
}

struct OwnTableImpl : torch::nn::Module {
  OwnTableImpl() { table = register_parameter("table", torch::randn({5, 3})); }
  torch::Tensor forward(const torch::Tensor& ids) { return torch::embedding(table, ids, -1, false, true); }
  torch::Tensor table;
};
TORCH_MODULE(OwnTable);

TEST(SparseGradients, OfOtherModulesAreRefusedByName) {
  OwnTable net;
  DistributedDataParallel ddp(net, world());
  EXPECT_THAT(error_of([&] { ddp.backward(ddp(torch::zeros({2}, torch::kLong)).sum(), 2); }),
              HasSubstr("parameter 'table' has a sparse gradient"));
}

TEST(SparseGradients, ThatTurnOutDenseAreRefusedByName) {
  Words net(true);
  DistributedDataParallel ddp(net, world(), small_buckets());
  EXPECT_THAT(error_of([&] { ddp.backward(ddp(ids_of(0, 0)).sum() + net->words->weight.sum(), 4); }),
              HasSubstr("set sparse(false)"));
}

}  // namespace
}  // namespace lockstep::testing
