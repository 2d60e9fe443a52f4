#include "runtime/comm/nccl/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"

namespace lockstep::comm::nccl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

DeviceOfRank rank_with(int rank, const std::string& node, int device, const std::string& identity) {
  return {.rank = rank,
          .node = node,
          .node_ranks = 2,
          .devices = 2,
          .device = device,
          .identity = identity,
          .trouble = ""};
}

TEST(Placement, AllowsOneDevicePerRank) {
  EXPECT_NO_THROW(check_placement(
      {rank_with(0, "n1", 0, "GPU-a"), rank_with(1, "n1", 1, "GPU-b"), rank_with(2, "n2", 0, "GPU-c")}));
}

TEST(Placement, AllowsRanksWhoseOwnDeviceIsAlwaysNumberZero) {
  EXPECT_NO_THROW(check_placement({rank_with(0, "n1", 0, "GPU-a"), rank_with(1, "n1", 0, "GPU-b")}));
}

TEST(Placement, NamesTheRanksThatShareADeviceAlthoughThereAreEnough) {
  EXPECT_THAT(
      ([] {
        check_placement({rank_with(0, "n1", 0, "GPU-a"), rank_with(1, "n1", 0, "GPU-a")});
      }),
      ThrowsMessage<UsageError>(AllOf(HasSubstr("ranks 0 and 1 on n1 both use GPU-a (cuda:0 and cuda:0)"),
                                      HasSubstr("cuda:<local rank>"))));
}

TEST(Placement, SaysThatANodeHasFewerDevicesThanRanks) {
  auto first = rank_with(2, "n2", 0, "GPU-c");
  auto second = rank_with(3, "n2", 0, "GPU-c");
  first.devices = second.devices = 1;
  EXPECT_THAT(
      [&] {
        check_placement({first, second});
      },
      ThrowsMessage<UsageError>(AllOf(HasSubstr("ranks 2 and 3 on n2 both use GPU-c"),
                                      HasSubstr("n2 has 2 ranks and rank 3 sees 1 GPU:"))));
}

TEST(Placement, NamesTheRankWithoutADevice) {
  auto without = rank_with(1, "n1", 1, "");
  without.trouble = "the device does not exist";
  EXPECT_THAT(
      [&] {
        check_placement({rank_with(0, "n1", 0, "GPU-a"), without});
      },
      ThrowsMessage<UsageError>(HasSubstr("rank 1 on n1 cannot use cuda:1: the device does not exist")));
}

}  // namespace
}  // namespace lockstep::comm::nccl
