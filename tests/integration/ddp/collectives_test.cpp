// The public collectives with tensors of every kind, on any number of ranks.
#include "runtime/ddp/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "common/error.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

int rank() {
  return world().rank();
}
int ranks() {
  return world().size();
}
// 1 + 2 + … + ranks
int sum_of_numbers() {
  return ranks() * (ranks() + 1) / 2;
}

void expect_equal(const torch::Tensor& found, const torch::Tensor& expected) {
  ASSERT_EQ(found.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(torch::equal(found, expected)) << found << "\nis not\n" << expected;
}

std::string message_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

TEST(AllReduce, SumsAMetricInTwoLines) {
  auto correct = torch::tensor(10 + rank());
  all_reduce(world(), correct);
  EXPECT_EQ(correct.item<int>(), 9 * ranks() + sum_of_numbers());
}

TEST(AllReduce, TakesEveryTypeThatHasASum) {
  for (const auto type :
       {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf, torch::kInt, torch::kLong}) {
    const auto tensor = torch::full({3, 2}, rank() + 1, type);
    all_reduce(world(), tensor);
    expect_equal(tensor, torch::full({3, 2}, sum_of_numbers(), type));
  }
}

TEST(AllReduce, FindsTheMeanTheMaximumAndTheMinimum) {
  const auto mine = torch::tensor({1.0 * rank(), -2.0 * rank()});
  const auto with = [&](ReduceOp op) {
    const auto tensor = mine.clone();
    all_reduce(world(), tensor, op);
    return tensor;
  };
  const double last = ranks() - 1;
  expect_equal(with(ReduceOp::average), torch::tensor({last / 2, -last}));
  expect_equal(with(ReduceOp::max), torch::tensor({last, 0.0}));
  expect_equal(with(ReduceOp::min), torch::tensor({0.0, -2 * last}));
  const auto bytes = torch::tensor({rank(), 200 - rank()}, torch::kByte);
  all_reduce(world(), bytes, ReduceOp::max);
  expect_equal(bytes, torch::tensor({ranks() - 1, 200}, torch::kByte));
}

TEST(AllReduce, DoesNotChangeMemoryBetweenTheElementsOfAView) {
  const auto whole = torch::zeros({4, 6}, torch::kFloat);
  const auto column = whole.slice(1, 2, 3);
  const auto turned = torch::arange(6, torch::kFloat).view({2, 3}).t();
  column.fill_(rank() + 1);
  all_reduce(world(), column);
  all_reduce(world(), turned);
  expect_equal(column, torch::full({4, 1}, sum_of_numbers(), torch::kFloat));
  EXPECT_EQ(whole.sum().item<int>(), 4 * sum_of_numbers());
  expect_equal(turned, torch::arange(6, torch::kFloat).view({2, 3}).t() * ranks());
}

TEST(AllReduce, AddsElementsOfTheSameIndexWhateverTheStrides) {
  const auto rows = torch::arange(6, torch::kDouble).view({2, 3});
  const auto tensor = rank() % 2 == 0 ? rows.clone() : rows.t().contiguous().t();
  all_reduce(world(), tensor);
  expect_equal(tensor, rows * ranks());
}

TEST(AllReduce, TakesScalarsAndTensorsWithoutElements) {
  const auto scalar = torch::tensor(1.5);
  all_reduce(world(), scalar);
  EXPECT_EQ(scalar.dim(), 0);
  EXPECT_EQ(scalar.item<double>(), 1.5 * ranks());
  const auto empty = torch::empty({0, 3});
  all_reduce(world(), empty);
  broadcast(world(), empty);
  EXPECT_EQ(empty.size(1), 3);
  EXPECT_EQ(all_gather(world(), empty).sizes(), torch::IntArrayRef({ranks(), 0, 3}));
}

TEST(AllReduce, TakesMoreThanOneMessageHolds) {
  const auto tensor = torch::full({3, 100'000}, rank() + 1, torch::kFloat);
  all_reduce(world(), tensor);
  expect_equal(tensor, torch::full({3, 100'000}, sum_of_numbers(), torch::kFloat));
}

TEST(AllReduce, TakesLazilyNegatedTensors) {
  const auto pair = torch::view_as_complex(torch::tensor({{1.0, 2.0}}));
  const auto negated = torch::imag(pair.conj());
  ASSERT_TRUE(negated.is_neg());
  all_reduce(world(), negated);
  expect_equal(negated.resolve_neg(), torch::tensor({-2.0 * ranks()}));
}

TEST(AllReduce, RefusesUnsupportedTensorsByName) {
  const auto refusal = [](const torch::Tensor& tensor, ReduceOp op = ReduceOp::sum) {
    return message_of([&] { all_reduce(world(), tensor, op, "hits"); });
  };
  EXPECT_THAT(refusal(torch::ones(2, torch::kBool)),
              AllOf(HasSubstr("all_reduce of hits (Bool [2])"), HasSubstr("to(torch::kLong)")));
  EXPECT_THAT(refusal(torch::ones(2, torch::kByte)), HasSubstr("hits (Byte [2])"));
  EXPECT_THAT(refusal(torch::ones(2, torch::kLong), ReduceOp::average),
              AllOf(HasSubstr("hits (Long [2])"), HasSubstr("average does not support"),
                    HasSubstr("to(torch::kDouble)")));
  EXPECT_THAT(refusal(torch::ones(2, torch::kLong), ReduceOp::sum_or_max), HasSubstr("not for tensors"));
  EXPECT_THAT(refusal(torch::ones(2, torch::kComplexFloat)), HasSubstr("view_as_real"));
  EXPECT_THAT(refusal(torch::ones({2, 2}).to_sparse()), HasSubstr("to_dense()"));
  EXPECT_THAT(refusal(torch::ones({2, 1}).expand({2, 3})),
              AllOf(HasSubstr("hits (Float [2, 3])"), HasSubstr("clone()")));
  EXPECT_THAT(refusal({}), HasSubstr("all_reduce of hits: the tensor is undefined"));
}

TEST(AllReduce, IsAChangeThatAutogradNotices) {
  const auto weight = torch::ones(2, torch::requires_grad());
  const auto loss = (weight * weight).sum();
  all_reduce(world(), weight);
  EXPECT_THROW(loss.backward(), c10::Error);
}

TEST(Broadcast, SendsTheRootsElementsOfAnyType) {
  const int root = ranks() - 1;
  for (const auto type : {torch::kFloat, torch::kLong, torch::kBool, torch::kShort, torch::kComplexDouble}) {
    const auto tensor = torch::full({2, 3}, rank() == root ? 1 : 0, type).t();
    broadcast(world(), tensor, root);
    expect_equal(tensor, torch::ones({3, 2}, type));
  }
}

TEST(Broadcast, FailsIfTheRootDoesNotExist) {
  const auto tensor = torch::ones(1);
  EXPECT_THAT([&] { broadcast(world(), tensor, ranks(), "weights"); },
              ::testing::ThrowsMessage<Error>(HasSubstr("there is no rank " + std::to_string(ranks()))));
}

TEST(AllGather, StacksTheTensorsInTheOrderOfRanks) {
  for (const auto type : {torch::kFloat, torch::kLong, torch::kBool, torch::kComplexFloat}) {
    const auto all = all_gather(world(), torch::full({3, 2}, rank() % 2, type).t());
    ASSERT_EQ(all.sizes(), torch::IntArrayRef({ranks(), 2, 3}));
    for (int i = 0; i < ranks(); ++i) expect_equal(all[i], torch::full({2, 3}, i % 2, type));
  }
  expect_equal(all_gather(world(), torch::tensor(rank())), torch::arange(ranks(), torch::kLong));
  expect_equal(all_gather(world(), torch::tensor(rank()).expand({2}))[0], torch::zeros(2, torch::kLong));
}

TEST(Asynchronous, OperationsKeepTheirTensorsAndCanBeWaitedForInAnyOrder) {
  std::vector<torch::Tensor> sums;
  std::vector<WorkHandle> works;
  for (int i = 0; i < 5; ++i) {
    sums.push_back(torch::full({1000, 20}, i * (rank() + 1)).t());
    works.push_back(all_reduce_async(world(), sums.back()));
  }
  torch::Tensor all;
  const auto gathered = all_gather_async(world(), torch::full({2000}, rank()), all);
  const auto received = torch::full({2000}, rank());
  const auto sent = broadcast_async(world(), received, 0);
  barrier_async(world())->wait();
  sent->wait();
  expect_equal(received, torch::zeros(2000, torch::kLong));
  gathered->wait();
  expect_equal(all[ranks() - 1], torch::full({2000}, ranks() - 1));
  for (int i = 4; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    works[at]->wait();
    works[at]->wait();
    expect_equal(sums[at], torch::full({20, 1000}, i * sum_of_numbers()));
    EXPECT_TRUE(works[at]->done());
    EXPECT_GT(works[at]->times().ended_ns, 0U);
  }
}

TEST(Asynchronous, OperationsEndEvenIfTheirHandlesAreDropped) {
  for (int i = 0; i < 100; ++i) {
    static_cast<void>(all_reduce_async(world(), torch::full({5000}, rank())));
    torch::Tensor all;
    static_cast<void>(all_gather_async(world(), torch::full({5000}, rank()), all));
  }
  barrier(world());
}

}  // namespace
}  // namespace lockstep::testing
