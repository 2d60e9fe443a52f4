// The order that the NCCL communicator makes between streams and threads, under the race detector.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "common/error.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/nccl/cuda.h"
#include "runtime/comm/nccl/device_clock.h"
#include "tests/device/simulation.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::comm::nccl {
namespace {

using ::lockstep::testing::any_rank;
using ::lockstep::testing::world;
using simulated::Wait;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

int rank() {
  return world().rank();
}

int size() {
  return world().size();
}

Communicator& communicator() {
  return world().communicator_of_device(world().local_rank());
}

// The largest number of any rank.
int most(int mine) {
  world().communicator().all_reduce({&mine, 1, DataType::i32}, "a number", {.op = ReduceOp::max})->wait();
  return mine;
}

// A training step as the communicator sees it: memory that its own stream writes and reads, operations that follow
// each other, a group of half of the ranks, callbacks, and the clock of the phases.
class Step {
 public:
  explicit Step(std::uint64_t seed) {
    simulated::set_seed(seed * 16 + static_cast<std::uint64_t>(rank()));
    check(cudaSetDevice(world().local_rank()), "cudaSetDevice");
    stream_ = make_stream();
    communicator().set_stream_source([this] { return stream_.get(); });
  }
  ~Step() {
    cudaStreamSynchronize(stream_.get());
    communicator().set_stream_source([] { return nullptr; });
  }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;

  void run() {
    auto clock = make_device_clock(world().local_rank(), [this] { return stream_.get(); });
    const auto began = clock->mark();
    reduce_and_read();
    broadcast_gather_and_scatter();
    pass_around();
    reduce_among_some();
    call_back();
    const auto ended = clock->mark();
    clock->wait(ended);
    ns_ = clock->ns_between(began, ended);
  }

  bool right() const { return right_ && ns_ > 0; }

 private:
  void fill(const std::shared_ptr<void>& memory, int value, std::size_t bytes) {
    check(cudaMemsetAsync(memory.get(), value, bytes, stream_.get()), "cudaMemsetAsync");
  }

  void expect(const void* memory, std::vector<std::uint8_t> wanted) {
    std::vector<std::uint8_t> values(wanted.size());
    check(cudaMemcpyAsync(values.data(), memory, values.size(), cudaMemcpyDeviceToHost, stream_.get()),
          "cudaMemcpyAsync");
    right_ = right_ && values == wanted;
  }

  void reduce_and_read() {
    const auto memory = communicator().allocate(8);
    for (int step = 0; step < 2; ++step) {
      fill(memory, rank() + 1, 8);
      communicator().all_reduce({memory.get(), 8, DataType::u8}, "bucket 0")->wait();
      expect(memory.get(),
             std::vector<std::uint8_t>(8, static_cast<std::uint8_t>(size() * (size() + 1) / 2)));
    }
  }

  void broadcast_gather_and_scatter() {
    const auto ranks = static_cast<std::size_t>(size());
    const auto root = communicator().allocate(4);
    fill(root, rank() + 1, 4);
    communicator().broadcast({root.get(), 4, DataType::u8}, size() - 1, "parameters")->wait();
    expect(root.get(), std::vector<std::uint8_t>(4, static_cast<std::uint8_t>(size())));
    fill(root, 0, 4);

    const auto mine = communicator().allocate(1);
    const auto all = communicator().allocate(ranks);
    fill(mine, rank() + 1, 1);
    communicator().all_gather({mine.get(), 1, DataType::u8}, all.get(), "parts")->wait();
    std::vector<std::uint8_t> gathered(ranks);
    for (std::size_t i = 0; i < ranks; ++i) gathered[i] = static_cast<std::uint8_t>(i + 1);
    expect(all.get(), gathered);
    fill(mine, 0, 1);

    communicator().reduce_scatter(all.get(), {mine.get(), 1, DataType::u8}, "parts")->wait();
    expect(mine.get(), {static_cast<std::uint8_t>(size() * (rank() + 1))});
    fill(all, 0, ranks);
  }

  // To the next rank, from the one before.
  void pass_around() {
    if (size() == 1) return;
    const int before = (rank() + size() - 1) % size();
    const auto mine = communicator().allocate(4);
    const auto its = communicator().allocate(4);
    fill(mine, rank() + 1, 4);
    fill(its, 0, 4);
    const std::vector<PeerMessage> sends = {{(rank() + 1) % size(), mine.get(), 4}};
    const std::vector<PeerMessage> receives = {{before, its.get(), 4}};
    communicator().exchange(sends, receives, "a message")->wait();
    expect(its.get(), std::vector<std::uint8_t>(4, static_cast<std::uint8_t>(before + 1)));
    fill(mine, 0, 4);
  }

  void reduce_among_some() {
    const auto group = communicator().split(rank() % 2, "half of the ranks");
    const auto memory = group->allocate(4);
    fill(memory, 1, 4);
    group->all_reduce({memory.get(), 4, DataType::u8}, "ones")->wait();
    expect(memory.get(), std::vector<std::uint8_t>(4, static_cast<std::uint8_t>(group->size())));
  }

  // `then` and the owner of the memory touch it on the watchdog's thread, and after a barrier the host does.
  void call_back() {
    const auto memory = communicator().allocate(4);
    std::shared_ptr<const void> owner(memory.get(), [memory](const void* data) {
      simulated::learn_from_other_threads();  // those that had a share
      simulated::access_from_host(data, 4, true, "the owner, which uses its memory again");
    });
    const auto half = communicator().allocate(8);
    communicator().all_reduce({half.get(), 2, DataType::f32}, "summed");
    communicator().all_reduce(
        {memory.get(), 4, DataType::u8}, "with an owner",
        {.then = [&memory] { simulated::access_from_host(memory.get(), 4, false, "`then`"); },
         .keep = std::move(owner)});
    communicator().barrier("step")->wait();
    simulated::learn_from_other_threads();
    simulated::access_from_host(half.get(), 4, true, "the host after a barrier");
    right_ = right_ && simulated::knows_all_collectives();
  }

  Stream stream_;
  std::uint64_t ns_ = 0;
  bool right_ = true;
};

class NcclOrder : public ::testing::Test {
 protected:
  void SetUp() override { communicator(); }
  void TearDown() override { EXPECT_THAT(simulated::take_findings(), IsEmpty()); }
};

TEST_F(NcclOrder, EachRankHasAContextOnItsOwnDeviceOnly) {
  // A new thread's current device is 0.
  std::shared_ptr<void> memory;
  std::thread([&memory] { memory = communicator().allocate(1); }).join();
  std::thread([&memory] { memory.reset(); }).join();
  EXPECT_THAT(simulated::contexts(), ElementsAre(world().local_rank()));
}

TEST_F(NcclOrder, HoldsForManySeeds) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Step step(seed);
    step.run();
    EXPECT_TRUE(step.right()) << "seed " << seed;
    EXPECT_THAT(simulated::take_findings(), IsEmpty()) << "seed " << seed;
  }
}

// Without any one of its waits the product is wrong, and the race detector or a wrong result says so.
TEST_F(NcclOrder, EveryWaitIsNeeded) {
  if (size() != 2) GTEST_SKIP() << "with 2 ranks only, because it takes a while";
  std::map<std::string, bool> found;  // by the line that waits
  for (const Wait kind : {Wait::stream, Wait::host, Wait::query, Wait::launch}) {
    // The seed decides which collectives NCCL launches late.
    for (std::uint64_t seed = 1; seed <= (kind == Wait::launch ? 2 : 1); ++seed) {
      simulated::drop_wait(kind, 0);
      Step(seed).run();
      const int waits = most(simulated::waits(kind));
      for (int n = 1; n <= waits; ++n) {
        bool finding = false;
        {
          Step step(seed);
          simulated::drop_wait(kind, n);
          step.run();
          finding = !step.right();
        }
        finding |= simulated::drop_findings() > 0;
        simulated::drop_wait(kind, 0);
        for (const auto& site : simulated::take_dropped_sites()) found[site] = found[site] || finding;
      }
    }
  }
  int in_product = 0;
  for (const auto& [site, is_found] : found) {
    if (site.starts_with("order_test")) continue;
    ++in_product;
    EXPECT_TRUE(is_found) << site << " can be left out, and nothing notices";
    if (rank() == 0) std::printf("  %s: %s\n", site.c_str(), is_found ? "found" : "not found");
  }
  EXPECT_GE(in_product, 10);
}

}  // namespace
}  // namespace lockstep::comm::nccl
