// The simulation finds what it should find, and nothing else.
#include "tests/device/simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <thread>
#include <vector>

namespace lockstep::simulated {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kBytes = 4096;

void ok(cudaError_t code) {
  ASSERT_EQ(code, cudaSuccess) << cudaGetErrorString(code);
}

class Simulation : public ::testing::Test {
 protected:
  void SetUp() override {
    ok(cudaStreamCreateWithFlags(&one_, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&event_, cudaEventDefault));
    ok(cudaMalloc(&memory_, kBytes));
  }
  void TearDown() override {
    ok(cudaFree(memory_));
    ok(cudaEventDestroy(event_));
    ok(cudaStreamDestroy(one_));
    ok(cudaStreamDestroy(other_));
    EXPECT_THAT(take_findings(), IsEmpty());
  }

  void write(cudaStream_t stream, int value = 1) { ok(cudaMemsetAsync(memory_, value, kBytes, stream)); }
  std::vector<unsigned char> read() const {
    std::vector<unsigned char> values(kBytes);
    ok(cudaMemcpy(values.data(), memory_, kBytes, cudaMemcpyDeviceToHost));
    return values;
  }

  cudaStream_t one_ = nullptr;
  cudaStream_t other_ = nullptr;
  cudaEvent_t event_ = nullptr;
  void* memory_ = nullptr;
};

TEST_F(Simulation, FindsWritesOnTwoStreamsAndNamesBothCalls) {
  write(one_);
  write(other_);
  EXPECT_THAT(take_findings(),
              ElementsAre(AllOf(HasSubstr("cudaMemsetAsync at simulation_test.cpp"),
                                HasSubstr("nothing orders it after cudaMemsetAsync at simulation"))));
}

TEST_F(Simulation, AcceptsAnEventBetweenTwoStreams) {
  for (int seed = 0; seed < 20; ++seed) {
    set_seed(static_cast<std::uint64_t>(seed));
    write(one_, seed);
    ok(cudaEventRecord(event_, one_));
    ok(cudaStreamWaitEvent(other_, event_, 0));
    write(other_, seed + 100);
    ok(cudaStreamSynchronize(other_));
    EXPECT_EQ(read().back(), seed + 100);
    ok(cudaDeviceSynchronize());
  }
}

TEST_F(Simulation, AnEventCoversOnlyTheWorkBeforeItsRecord) {
  ok(cudaEventRecord(event_, one_));
  write(one_);
  ok(cudaStreamWaitEvent(other_, event_, 0));
  write(other_);
  EXPECT_THAT(take_findings(), SizeIs(1));
}

TEST_F(Simulation, ReadsDoNotRaceWithEachOther) {
  write(one_);
  ok(cudaStreamSynchronize(one_));
  std::array<std::byte*, 2> copies{};
  for (std::byte*& copy : copies) {
    void* memory = nullptr;
    ok(cudaMalloc(&memory, kBytes));
    copy = static_cast<std::byte*>(memory);
  }
  ok(cudaMemcpyAsync(copies[0], memory_, kBytes, cudaMemcpyDeviceToDevice, one_));
  ok(cudaMemcpyAsync(copies[1], memory_, kBytes, cudaMemcpyDeviceToDevice, other_));
  EXPECT_THAT(take_findings(), IsEmpty());
  for (std::byte* copy : copies) ok(cudaFree(copy));
}

TEST_F(Simulation, OnlyBlockingStreamsFollowTheDefaultStream) {
  cudaStream_t blocking = nullptr;
  ok(cudaStreamCreateWithFlags(&blocking, cudaStreamDefault));
  write(nullptr, 1);
  write(blocking, 2);
  write(nullptr, 3);
  EXPECT_THAT(take_findings(), IsEmpty());
  EXPECT_EQ(read().front(), 3);
  write(nullptr);
  write(one_);
  EXPECT_THAT(take_findings(), SizeIs(1));
  ok(cudaStreamDestroy(blocking));
}

// The copy to the device goes on after cudaMemcpy has returned.
TEST_F(Simulation, CopiesFromPageableMemoryAreStaged) {
  std::vector<unsigned char> values(kBytes, 7);
  ok(cudaMemcpy(memory_, values.data(), kBytes, cudaMemcpyHostToDevice));
  std::fill(values.begin(), values.end(), 8);
  EXPECT_EQ(read().back(), 7);
  ok(cudaMemcpy(memory_, values.data(), kBytes, cudaMemcpyHostToDevice));
  write(one_);
  EXPECT_THAT(take_findings(), SizeIs(1));
}

TEST_F(Simulation, FindsTheHostTouchingPageLockedMemoryTooEarly) {
  void* pinned = nullptr;
  ok(cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault));
  write(one_, 5);
  ok(cudaMemcpyAsync(pinned, memory_, kBytes, cudaMemcpyDeviceToHost, one_));
  access_from_host(pinned, 1, false, "the test");
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("the test")));
  ok(cudaStreamSynchronize(one_));
  access_from_host(pinned, 1, false, "the test");
  EXPECT_EQ(*static_cast<unsigned char*>(pinned), 5);
  ok(cudaFreeHost(pinned));
}

TEST_F(Simulation, AQueryTellsOnlyTheThreadThatAsked) {
  write(one_);
  ok(cudaEventRecord(event_, one_));
  std::thread([this] {
    while (cudaEventQuery(event_) == cudaErrorNotReady) std::this_thread::yield();
  }).join();
  write(other_);
  EXPECT_THAT(take_findings(), SizeIs(1));
  learn_from_other_threads();
  write(other_);
  EXPECT_THAT(take_findings(), IsEmpty());
}

TEST_F(Simulation, NewMemoryIsPoisoned) {
  float value = 0;
  ok(cudaMemcpy(&value, memory_, sizeof value, cudaMemcpyDeviceToHost));
  EXPECT_TRUE(std::isnan(value));
}

TEST_F(Simulation, FindsUsesOfFreedMemory) {
  void* freed = nullptr;
  ok(cudaMalloc(&freed, kBytes));
  ok(cudaFree(freed));
  EXPECT_EQ(cudaFree(freed), cudaErrorInvalidValue);
  cudaMemsetAsync(freed, 0, 1, one_);
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("freed")));
}

TEST_F(Simulation, TheHostCannotTouchDeviceMemory) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe(pipe.data()), 0);
  EXPECT_EQ(::write(pipe[1], memory_, 1), -1);
  EXPECT_EQ(errno, EFAULT);
  ::close(pipe[0]);
  ::close(pipe[1]);
}

TEST_F(Simulation, KeepsTheErrorsOfADevice) {
  EXPECT_EQ(cudaSetDevice(8), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event_, event_), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventQuery(nullptr), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamSynchronize(reinterpret_cast<cudaStream_t>(memory_)), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaMemcpy(memory_, memory_, 1, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
}

TEST_F(Simulation, TimesNeedEventsThatTheThreadHasWaitedFor) {
  cudaEvent_t end = nullptr;
  ok(cudaEventCreateWithFlags(&end, cudaEventDefault));
  ok(cudaEventRecord(event_, one_));
  write(one_);
  ok(cudaEventRecord(end, one_));
  float milliseconds = -1;
  static_cast<void>(cudaEventElapsedTime(&milliseconds, event_, end));
  EXPECT_THAT(take_findings(), ElementsAre(HasSubstr("cudaEventElapsedTime")));
  ok(cudaEventSynchronize(end));
  ok(cudaEventElapsedTime(&milliseconds, event_, end));
  EXPECT_GE(milliseconds, 0);
  ok(cudaEventDestroy(end));
}

TEST_F(Simulation, DropsTheWaitThatATestNames) {
  drop_wait(Wait::stream, 2);
  for (int i = 0; i < 2; ++i) {
    write(one_);
    ok(cudaEventRecord(event_, one_));
    ok(cudaStreamWaitEvent(other_, event_, 0));
    write(other_);
    EXPECT_THAT(take_findings(), SizeIs(i)) << i;
    ok(cudaDeviceSynchronize());
  }
  EXPECT_EQ(waits(Wait::stream), 2);
  EXPECT_THAT(take_dropped_sites(), SizeIs(1));
  drop_wait(Wait::stream, 0);
}

TEST_F(Simulation, EachDeviceHasAContextOnlyIfItWasUsed) {
  EXPECT_THAT(contexts(), ElementsAre(0));
  std::thread([] { ok(cudaSetDevice(3)); }).join();
  EXPECT_THAT(contexts(), ElementsAre(0, 3));
}

// As ncclCommAbort, which ends operations whose ranks never come.
TEST_F(Simulation, AnAbortEndsWhatTheStreamWaitsFor) {
  ncclUniqueId id{};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
  inject(Fault::absence, 1);
  ASSERT_EQ(ncclAllReduce(memory_, memory_, 1, ncclFloat, ncclSum, comm, one_), ncclSuccess);
  ok(cudaEventRecord(event_, one_));
  EXPECT_EQ(cudaEventQuery(event_), cudaErrorNotReady);
  EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  ok(cudaEventSynchronize(event_));
}

TEST_F(Simulation, TwoRanksOnOneDeviceAreRefused) {
  ncclUniqueId id{};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const auto join = [&id](int rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, 2, id, rank, &config), ncclInvalidUsage);
    EXPECT_THAT(ncclGetLastError(comm), HasSubstr("rank 0 and rank 1 both on CUDA device 0"));
    EXPECT_EQ(ncclCommAbort(comm), ncclSuccess);
  };
  std::thread other(join, 1);
  join(0);
  other.join();
}

TEST_F(Simulation, GroupedCallsBeginAtTheGroupsEnd) {
  ncclUniqueId id{};
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t comm = nullptr;
  ASSERT_EQ(ncclCommInitRankConfig(&comm, 1, id, 0, &config), ncclSuccess);
  write(one_, 1);
  ASSERT_EQ(ncclGroupStart(), ncclSuccess);
  ASSERT_EQ(ncclAllReduce(memory_, memory_, 1, ncclUint8, ncclSum, comm, one_), ncclSuccess);
  write(one_, 2);
  ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
  ok(cudaStreamSynchronize(one_));
  EXPECT_EQ(read().front(), 2);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  EXPECT_EQ(ncclCommDestroy(comm), ncclSuccess);
}

}  // namespace
}  // namespace lockstep::simulated
