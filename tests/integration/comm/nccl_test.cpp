// The communicator between GPUs, one for each rank of a node. Without GPUs only its error message is tested.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#include "common/error.h"
#include "runtime/comm/half.h"
#include "runtime/comm/nccl/cuda.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::comm::nccl {
namespace {

using ::lockstep::testing::any_rank;
using ::lockstep::testing::world;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

bool short_of_devices() {
  return any_rank(devices() < world().local_size());
}

TEST(NcclWithoutEnoughDevices, IsRejectedOnEveryRankWithTheReason) {
  if (!short_of_devices()) GTEST_SKIP() << "every rank has a CUDA device";
  if (any_rank(devices() > 0)) GTEST_SKIP() << "some nodes have CUDA devices";
  EXPECT_THAT(
      [] { world().communicator_of_device(world().local_rank()); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("rank 0 on " + world().node_name()), HasSubstr("cuda:0"),
                                      HasSubstr("no usable CUDA device: " + why_no_devices()))));
}

TEST(NcclWithoutEnoughDevices, TwoRanksOnOneDeviceAreRejectedByName) {
  if (world().size() < 2 || any_rank(devices() < 1)) {
    GTEST_SKIP() << "fewer than two ranks, or a rank without a CUDA device (" << why_no_devices() << ")";
  }
  EXPECT_THAT(
      [] { world().communicator_of_device(0); },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("ranks 0 and 1 on " + world().node_name()),
                                      HasSubstr(identity_of(0)), HasSubstr("NCCL allows one rank per GPU"))));
}

class Nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (short_of_devices()) {
      GTEST_SKIP() << "fewer CUDA devices than ranks on a node ("
                   << (devices() == 0 ? why_no_devices() : std::to_string(devices())) << ")";
    }
    check(cudaSetDevice(world().local_rank()), "cudaSetDevice");
  }

  static Communicator& communicator() { return world().communicator_of_device(world().local_rank()); }
  static int rank() { return world().rank(); }
  static int size() { return world().size(); }

  template <typename T>
  static std::shared_ptr<void> put(const std::vector<T>& values) {
    auto memory = communicator().allocate(values.size() * sizeof(T));
    check(cudaMemcpy(memory.get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    return memory;
  }

  // Copies on the default stream, so after the operations that it waits for.
  template <typename T>
  static std::vector<T> get(const void* memory, std::size_t count) {
    std::vector<T> values(count);
    check(cudaMemcpy(values.data(), memory, count * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

  template <typename T>
  static std::vector<T> all_reduced(const std::vector<T>& mine, DataType type, ReduceOptions options = {}) {
    const auto memory = put(mine);
    communicator().all_reduce({memory.get(), mine.size(), type}, "values", std::move(options))->wait();
    return get<T>(memory.get(), mine.size());
  }
};

template <typename T>
void expect_sums(DataType type, const std::vector<T>& sums, int size) {
  for (std::size_t i = 0; i < sums.size(); ++i) {
    ASSERT_EQ(sums[i], static_cast<T>(size * (size + 1) / 2 + size * static_cast<int>(i % 7)))
        << name_of(type) << i;
  }
}

TEST_F(Nccl, SumsEveryElementType) {
  const auto values = [](auto zero) {
    std::vector<decltype(zero)> mine(1000);
    for (std::size_t i = 0; i < mine.size(); ++i) {
      mine[i] = static_cast<decltype(zero)>(rank() + 1 + static_cast<int>(i % 7));
    }
    return mine;
  };
  expect_sums(DataType::f32, all_reduced(values(0.0F), DataType::f32), size());
  expect_sums(DataType::f64, all_reduced(values(0.0), DataType::f64), size());
  expect_sums(DataType::i32, all_reduced(values(std::int32_t{}), DataType::i32), size());
  expect_sums(DataType::i64, all_reduced(values(std::int64_t{}), DataType::i64), size());
  expect_sums(DataType::u8, all_reduced(values(std::uint8_t{}), DataType::u8), size());
  EXPECT_EQ(to_float(all_reduced(std::vector{to_bf16(1.5F)}, DataType::bf16)[0]),
            1.5F * static_cast<float>(size()));
  EXPECT_EQ(to_float(all_reduced(std::vector{to_f16(1.5F)}, DataType::f16)[0]),
            1.5F * static_cast<float>(size()));
}

TEST_F(Nccl, FindsTheMaximumAndTheMinimum) {
  const std::vector<float> mine{static_cast<float>(rank()), static_cast<float>(-rank())};
  EXPECT_EQ(all_reduced(mine, DataType::f32, {.op = ReduceOp::max}),
            (std::vector{static_cast<float>(size() - 1), 0.0F}));
  EXPECT_EQ(all_reduced(mine, DataType::f32, {.op = ReduceOp::min}),
            (std::vector{0.0F, static_cast<float>(1 - size())}));
}

TEST_F(Nccl, Averages) {
  const std::vector<double> mine{static_cast<double>(rank())};
  EXPECT_NEAR(all_reduced(mine, DataType::f64, {.op = ReduceOp::average})[0], (size() - 1) / 2.0, 1e-15);
}

TEST_F(Nccl, GivesEveryRankTheSameBits) {
  std::vector<float> mine(100'000);
  for (std::size_t i = 0; i < mine.size(); ++i)
    mine[i] = 1.0F / static_cast<float>(i + 3 + static_cast<std::size_t>(rank()));
  const auto reduced = all_reduced(mine, DataType::f32);
  auto first = reduced;
  world().communicator().broadcast({first.data(), first.size(), DataType::f32}, 0, "rank 0's bits")->wait();
  EXPECT_EQ(std::memcmp(reduced.data(), first.data(), reduced.size() * sizeof(float)), 0);
}

TEST_F(Nccl, RefusesUnsupportedOperationsByName) {
  const auto memory = communicator().allocate(64);
  const double third = 1.0 / 3.0;
  const auto reduce = [&](DataType type, ReduceOptions options) {
    return [&communicator = communicator(), data = memory.get(), type, options] {
      communicator.all_reduce({data, 4, type}, "values", options);
    };
  };
  EXPECT_THAT(reduce(DataType::i32, {.op = ReduceOp::bit_or}),
              ThrowsMessage<UsageError>(HasSubstr("bit_or")));
  EXPECT_THAT(reduce(DataType::i32, {.op = ReduceOp::average}), ThrowsMessage<UsageError>(HasSubstr("i32")));
  EXPECT_THAT(reduce(DataType::f32, {.scale = &third}), ThrowsMessage<UsageError>(HasSubstr("scale")));
}

TEST_F(Nccl, BroadcastsFromAnyRank) {
  const int root = size() - 1;
  const auto memory = put(std::vector<std::int64_t>{rank(), 7});
  communicator().broadcast({memory.get(), 2, DataType::i64}, root, "values")->wait();
  EXPECT_EQ(get<std::int64_t>(memory.get(), 2), (std::vector<std::int64_t>{root, 7}));
}

TEST_F(Nccl, GathersInPlaceAndScattersSums) {
  const auto ranks = static_cast<std::size_t>(size());
  std::vector<std::int32_t> all(ranks * 3, -1);
  for (std::size_t i = 0; i < 3; ++i) all[static_cast<std::size_t>(rank()) * 3 + i] = rank();
  const auto memory = put(all);
  auto* mine = static_cast<std::int32_t*>(memory.get()) + static_cast<std::ptrdiff_t>(rank()) * 3;
  communicator().all_gather({mine, 3, DataType::i32}, memory.get(), "parts")->wait();
  const auto gathered = get<std::int32_t>(memory.get(), all.size());
  for (std::size_t i = 0; i < gathered.size(); ++i) EXPECT_EQ(gathered[i], static_cast<std::int32_t>(i / 3));

  communicator().reduce_scatter(memory.get(), {mine, 3, DataType::i32}, "parts")->wait();
  EXPECT_EQ(get<std::int32_t>(mine, 3), std::vector<std::int32_t>(3, rank() * size()));
}

// The bytes that one rank sends to another; none to some.
std::vector<std::uint8_t> message_of(int from, int to) {
  if ((from + 2 * to) % 3 == 0) return {};
  std::vector<std::uint8_t> bytes(static_cast<std::size_t>(100'000 * from + 1000 * to + 1));
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(from * 31 + to));
  return bytes;
}

TEST_F(Nccl, GivesEachRankTheMessagesForIt) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::shared_ptr<void>> memory;
    std::vector<PeerMessage> sends;
    std::vector<PeerMessage> receives;
    for (int peer = 0; peer < size(); ++peer) {
      const auto out = message_of(rank(), peer);
      const std::size_t in = message_of(peer, rank()).size();
      if (peer != rank() && !out.empty())
        sends.push_back({peer, memory.emplace_back(put(out)).get(), out.size()});
      if (peer != rank() && in > 0)
        receives.push_back({peer, memory.emplace_back(communicator().allocate(in)).get(), in});
    }
    communicator().exchange(sends, receives, "messages")->wait();
    for (const PeerMessage& in : receives)
      EXPECT_EQ(get<std::uint8_t>(in.data, in.bytes), message_of(in.peer, rank())) << "of rank " << in.peer;
  }
}

TEST_F(Nccl, RefusesAMessageToItself) {
  const std::vector<PeerMessage> messages = {{rank(), nullptr, 1}};
  EXPECT_THAT([&] { communicator().exchange(messages, {}, "nothing"); },
              ThrowsMessage<UsageError>(HasSubstr("cannot exchange a message with rank")));
}

TEST_F(Nccl, WaitsForTheStartersStreamAndMakesTheWaitersStreamWait) {
  const Stream stream = make_stream();
  communicator().set_stream_source([&stream] { return stream.get(); });
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  const auto memory = communicator().allocate(kBytes);
  std::vector<std::uint8_t> seen(kBytes);
  for (int i = 0; i < 40; ++i)  // so that the device is busy for a while
    check(cudaMemsetAsync(memory.get(), i, kBytes, stream.get()), "cudaMemsetAsync");
  check(cudaMemsetAsync(memory.get(), 1, kBytes, stream.get()), "cudaMemsetAsync");
  const auto work = communicator().all_reduce({memory.get(), kBytes, DataType::u8}, "values");
  work->wait();
  check(cudaMemcpyAsync(seen.data(), memory.get(), kBytes, cudaMemcpyDeviceToHost, stream.get()),
        "cudaMemcpyAsync");
  check(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  EXPECT_TRUE(work->done());
  EXPECT_EQ(seen.front(), size());
  EXPECT_EQ(seen.back(), size());
  communicator().set_stream_source([] { return nullptr; });
}

TEST_F(Nccl, CallsThenBeforeItIsDone) {
  const auto memory = communicator().allocate(64);
  std::atomic<bool> called = false;
  const auto work = communicator().all_reduce({memory.get(), 16, DataType::f32}, "values",
                                              {.then = [&] { called = true; }});
  communicator().barrier("the test's end")->wait();
  while (!work->done()) {
  }
  EXPECT_TRUE(called);
}

TEST_F(Nccl, SplitsIntoGroups) {
  const auto group = communicator().split(rank() % 2, rank() % 2 == 0 ? "even" : "odd");
  ASSERT_NE(group, nullptr);
  EXPECT_EQ(group->size(), (size() + 1 - rank() % 2) / 2);
  EXPECT_EQ(group->rank(), rank() / 2);
  const auto memory = put(std::vector<std::int32_t>{1});
  group->all_reduce({memory.get(), 1, DataType::i32}, "ones")->wait();
  EXPECT_EQ(get<std::int32_t>(memory.get(), 1)[0], group->size());
  EXPECT_EQ(communicator().split(-1, "none"), nullptr);
}

}  // namespace
}  // namespace lockstep::comm::nccl
