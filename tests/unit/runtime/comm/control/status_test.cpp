#include "runtime/comm/control/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/comm/control/activity.h"

namespace lockstep::comm::control {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr std::uint64_t kSecond = 1'000'000'000;

Roster nodes_of(int nodes, int ranks_each) {
  Roster roster;
  for (int node = 0; node < nodes; ++node) {
    roster.node_names.push_back("n" + std::to_string(node + 1));
    roster.node_of.insert(roster.node_of.end(), static_cast<std::size_t>(ranks_each), node);
  }
  return roster;
}

Status status_of(int rank, RankState state, const std::string& operation = "", std::uint64_t number = 0,
                 std::uint64_t seconds = 30) {
  return {rank, state, number, seconds * kSecond, operation};
}

const std::string kBucket = "all_reduce of bucket 3 (26214400 bytes)";

Overdue bucket_overdue(int rank = 1) {
  return {kBucket, 30, status_of(rank, RankState::waits, kBucket, 14)};
}

TEST(OverdueLine, SaysWhatEveryRankDoes) {
  EXPECT_EQ(
      explain_overdue(nodes_of(2, 2), bucket_overdue(),
                      {status_of(3, RankState::idle, "barrier of epoch", 12, 31),
                       status_of(0, RankState::waits, kBucket, 14),
                       status_of(1, RankState::waits, kBucket, 14), status_of(2, RankState::silent)}),
      "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s (LOCKSTEP_TIMEOUT): "
      "rank 2 on n2 does not answer (stopped or cut off?); "
      "rank 3 on n2 has called no operation for 31 s (its last operation: barrier of epoch); "
      "rank 0 on n1 has waited in the same operation for 30 s");
}

TEST(OverdueLine, DistinguishesOperationsOfTheSameNameByNumber) {
  const std::string line = explain_overdue(
      nodes_of(1, 4), bucket_overdue(),
      {status_of(0, RankState::waits, kBucket, 14), status_of(2, RankState::waits, kBucket, 12),
       status_of(3, RankState::works, kBucket, 19)});
  EXPECT_THAT(line,
              HasSubstr("rank 2 on n1 has waited in an earlier operation of this name (its number is 12, not "
                        "14) for 30 s"));
  EXPECT_THAT(line, HasSubstr("rank 3 on n1 has been in a later operation of this name"));
  EXPECT_THAT(line, EndsWith("rank 0 on n1 has waited in the same operation for 30 s"));
}

TEST(OverdueLine, NamesTheOperationAfterWhichTheOverdueOneIsQueued) {
  Overdue overdue = bucket_overdue();
  overdue.status.operation = "all_reduce of bucket 0 (8 bytes)";
  overdue.status.number = 11;
  EXPECT_EQ(
      explain_overdue(nodes_of(1, 2), overdue, {status_of(0, RankState::left, "barrier of epoch", 10)}),
      "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s "
      "(LOCKSTEP_TIMEOUT), queued after all_reduce of bucket 0 (8 bytes): rank 0 on n1 has left World (its "
      "last operation: barrier of epoch)");
}

TEST(OverdueLine, GivesARangeOfTimesIfRanksDiffer) {
  const std::string line = explain_overdue(
      nodes_of(1, 4), bucket_overdue(),
      {status_of(0, RankState::waits, kBucket, 14, 30), status_of(2, RankState::waits, kBucket, 14, 31),
       status_of(3, RankState::waits, kBucket, 14, 32)});
  EXPECT_THAT(line, EndsWith("ranks 0,2-3 on n1 have waited in the same operation for 32 s"));
  EXPECT_THAT(explain_overdue(nodes_of(1, 3), bucket_overdue(),
                              {status_of(0, RankState::asked, kBucket, 14, 5),
                               status_of(2, RankState::asked, kBucket, 14, 60)}),
              EndsWith("ranks 0,2 on n1 called the same operation 5.0 s to 60 s ago and have not begun it"));
}

TEST(OverdueLine, StaysReadableForThousandsOfRanks) {
  const Roster roster = nodes_of(512, 8);
  std::vector<Status> statuses;
  statuses.reserve(4096);
  for (int rank = 0; rank < 4096; ++rank) {
    statuses.push_back(rank == 3 ? status_of(rank, RankState::idle, "barrier of epoch", 3)
                                 : status_of(rank, RankState::waits, kBucket, 14, 30));
  }
  EXPECT_THAT(
      explain_overdue(roster, bucket_overdue(), statuses),
      EndsWith(
          ": rank 3 on n1 has called no operation for 30 s (its last operation: barrier of epoch); ranks "
          "0,2,4-4095 on 512 nodes have waited in the same operation for 30 s"));

  // Every second rank is stopped, and each of the others does something else.
  for (int rank = 0; rank < 4096; ++rank) {
    statuses[static_cast<std::size_t>(rank)] =
        rank % 2 == 0 ? status_of(rank, RankState::silent)
                      : status_of(rank, RankState::waits, "broadcast of " + std::to_string(rank));
  }
  const std::string line = explain_overdue(roster, bucket_overdue(), statuses);
  EXPECT_THAT(line, HasSubstr("ranks 0,2,4,6,8,10,12,14,... (2048 ranks) on 512 nodes do not answer"));
  EXPECT_THAT(line, EndsWith("; 2036 other ranks do other things"));
  EXPECT_LT(line.size(), 1500U);
}

TEST(LostRankLine, NamesTheRank) {
  EXPECT_EQ(explain_lost_rank(nodes_of(2, 2), 2, status_of(0, RankState::waits, kBucket, 14)),
            "rank 2 on n2 is gone (its process ended); rank 0 on n1 is in " + kBucket);
  EXPECT_EQ(explain_lost_rank(nodes_of(2, 2), 2, status_of(0, RankState::idle)),
            "rank 2 on n2 is gone (its process ended)");
}

TEST(Verdict, NamesARankOfANodeThatDoesNotAnswer) {
  EXPECT_EQ(
      explain_unreachable_rank(nodes_of(2, 2), 2, status_of(0, RankState::waits, kBucket, 14)),
      "rank 2 on n2 has not answered for 10 s (its node lost power, or is cut off); rank 0 on n1 is in " +
          kBucket);
}

TEST(Status, IsTheSameAfterUnpacking) {
  const std::vector<Status> statuses = {status_of(7, RankState::works, kBucket, 14),
                                        status_of(8, RankState::ended)};
  const auto back = unpack_statuses(pack(statuses));
  ASSERT_THAT(back, SizeIs(2));
  EXPECT_EQ(back[0].rank, 7);
  EXPECT_EQ(back[0].state, RankState::works);
  EXPECT_EQ(back[0].number, 14U);
  EXPECT_EQ(back[0].duration_ns, 30 * kSecond);
  EXPECT_EQ(back[0].operation, kBucket);
  EXPECT_EQ(back[1].state, RankState::ended);

  const Overdue overdue = unpack_overdue(pack(bucket_overdue()));
  EXPECT_EQ(overdue.operation, kBucket);
  EXPECT_EQ(overdue.seconds, 30U);
  EXPECT_EQ(overdue.status.number, 14U);
}

TEST(Status, IsRejectedIfDamaged) {
  const std::string bytes = pack(std::vector{status_of(7, RankState::works, kBucket, 14)});
  EXPECT_THROW(unpack_statuses(bytes.substr(0, bytes.size() - 1)), Error);
  EXPECT_THROW(unpack_statuses(bytes + "x"), Error);
  std::string wrong_state = bytes;
  wrong_state[3] = 100;  // after two marks of an array and the rank
  EXPECT_THROW(unpack_statuses(wrong_state), Error);
  EXPECT_THROW(unpack_overdue(""), Error);
}

TEST(Status, DescribesThisProcess) {
  const auto number = note_asked("the first");
  EXPECT_EQ(status_of_this_process(5).state, RankState::asked);
  note_began(number);
  EXPECT_EQ(status_of_this_process(5).state, RankState::works);
  {
    const WaitingNote note;
    const Status status = status_of_this_process(5);
    EXPECT_EQ(status.state, RankState::waits);
    EXPECT_EQ(status.operation, "the first");
    EXPECT_EQ(status.rank, 5);
  }
  note_ended(number);
  const Status status = status_of_this_process(5);
  EXPECT_EQ(status.state, RankState::idle);
  EXPECT_EQ(status.operation, "the first");
  EXPECT_LT(status.duration_ns, 60 * kSecond);
}

}  // namespace
}  // namespace lockstep::comm::control
