// Calls of CUDA and NCCL that fail, on communicators of one rank, so that the others notice nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/comm/nccl/communicator.h"
#include "runtime/comm/nccl/cuda.h"
#include "runtime/comm/nccl/device_clock.h"
#include "tests/device/simulation.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::comm::nccl {
namespace {

using simulated::Fault;
using simulated::inject;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::ThrowsMessage;

int own_device() {
  return ::lockstep::testing::world().local_rank();
}

std::unique_ptr<Communicator> alone(int device = own_device()) {
  return make_communicator(MPI_COMM_NULL, {.node_name = "n1"}, device);
}

class NcclFaults : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const Fault fault : {Fault::call, Fault::cudart}) inject(fault, 0);
    EXPECT_THAT(simulated::take_findings(), IsEmpty());
  }
};

TEST_F(NcclFaults, AFailedCollectiveNamesTheOperationAndTheCall) {
  const auto communicator = alone();
  const auto memory = communicator->allocate(64);
  const Buffer values{memory.get(), 4, DataType::f32};
  inject(Fault::call, 1);
  EXPECT_THAT([&] { communicator->all_reduce(values, "bucket 3"); },
              ThrowsMessage<Error>(AllOf(HasSubstr("all_reduce of bucket 3 (16 bytes) failed on rank"),
                                         HasSubstr("ncclAllReduce among all ranks"))));
  inject(Fault::call, 1);
  EXPECT_THAT([&] { communicator->split(0, "half"); }, ThrowsMessage<Error>(HasSubstr("ncclCommSplit")));
  communicator->all_reduce(values, "bucket 3")->wait();
}

// All ranks fail, so none waits for another.
TEST_F(NcclFaults, AFailedMessageNamesTheOperationAndLeavesNoGroupOpen) {
  const auto& world = ::lockstep::testing::world();
  if (world.size() == 1) GTEST_SKIP() << "one rank has nobody to exchange messages with";
  Communicator& communicator = ::lockstep::testing::world().communicator_of_device(own_device());
  const auto memory = communicator.allocate(64);
  const std::vector<PeerMessage> sends = {{(world.rank() + 1) % world.size(), memory.get(), 16}};
  const std::vector<PeerMessage> receives = {
      {(world.rank() + world.size() - 1) % world.size(), static_cast<std::byte*>(memory.get()) + 16, 16}};
  for (const int call : {1, 2, 3}) {  // ncclSend, ncclRecv, ncclGroupEnd
    inject(Fault::call, call);
    EXPECT_THAT([&] { communicator.exchange(sends, receives, "shards"); },
                ThrowsMessage<Error>(AllOf(HasSubstr("exchange of shards"), HasSubstr("failed on rank"),
                                           HasSubstr("ncclGroupEnd among all ranks"))));
  }
  communicator.exchange(sends, receives, "shards")->wait();
  communicator.barrier("the end")->wait();
}

TEST_F(NcclFaults, AFailedStartNamesTheCall) {
  inject(Fault::call, 1);
  EXPECT_THAT([] { alone(); }, ThrowsMessage<Error>(HasSubstr("ncclGetUniqueId: unhandled system error")));
  inject(Fault::call, 2);
  EXPECT_THAT([] { alone(); }, ThrowsMessage<Error>(HasSubstr("ncclCommInitRankConfig among all ranks")));
}

TEST_F(NcclFaults, AFailedEndAbortsTheCommunicator) {
  auto communicator = alone();
  inject(Fault::call, 1);
  communicator.reset();
  alone();
}

TEST_F(NcclFaults, ADeviceThatDoesNotExistIsRefusedByName) {
  EXPECT_THAT([] { alone(99); }, ThrowsMessage<UsageError>(AllOf(HasSubstr("rank 0 on n1 cannot use cuda:99"),
                                                                 HasSubstr("n1 has cuda:0 to cuda:7"))));
  // The call after cudaGetDeviceCount asks for the device's identity.
  inject(Fault::cudart, 1);
  EXPECT_THAT([] { alone(); },
              ThrowsMessage<UsageError>(HasSubstr("cannot use cuda:" + std::to_string(own_device()) +
                                                  ": cudaGetDeviceProperties: unknown error")));
}

TEST_F(NcclFaults, AFailedAllocationNamesTheCall) {
  const auto communicator = alone();
  for (const auto& [n, call] :
       {std::pair{2, "cudaMalloc"}, {3, "cudaMemset"}, {4, "cudaStreamSynchronize"}}) {
    inject(Fault::cudart, n);
    EXPECT_THAT([&] { communicator->allocate(1); }, ThrowsMessage<Error>(HasSubstr(call)));
  }
}

TEST_F(NcclFaults, AClockWhoseDeviceFailedHasNoTimes) {
  const Stream stream = make_stream();
  const auto clock = make_device_clock(own_device(), [&stream] { return stream.get(); });
  // As NVML shows the device, but without hyphens.
  EXPECT_THAT(clock->device_identity(), MatchesRegex("GPU-(51){15}0" + std::to_string(own_device())));
  const auto from = clock->mark();
  const auto to = clock->mark();
  while (!clock->reached(from) || !clock->reached(to)) {
  }
  inject(Fault::cudart, 1);
  EXPECT_EQ(clock->ns_between(from, to), 0);
  inject(Fault::cudart, 1);
  EXPECT_EQ(clock->mark(), nullptr);
  inject(Fault::cudart, 1);
  EXPECT_EQ(clock->device_identity(), "");
}

}  // namespace
}  // namespace lockstep::comm::nccl
