#include "runtime/comm/watch/status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"
#include "runtime/comm/watch/activity.h"

namespace lockstep::comm::watch {
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

Status does(int rank, State state, const std::string& operation = "", std::uint64_t number = 0,
            std::uint64_t seconds = 30) {
  return {rank, state, number, seconds * kSecond, operation};
}

const std::string kBucket = "all_reduce of bucket 3 (26214400 bytes)";

Overdue bucket_overdue(int rank = 1) {
  return {kBucket, 30, does(rank, State::waits, kBucket, 14)};
}

TEST(Line, SaysWhatEveryRankDoes) {
  EXPECT_EQ(
      explain_overdue(nodes_of(2, 2), bucket_overdue(),
                      {does(3, State::idle, "barrier of epoch", 12, 31), does(0, State::waits, kBucket, 14),
                       does(1, State::waits, kBucket, 14), does(2, State::silent)}),
      "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s (LOCKSTEP_TIMEOUT): "
      "rank 2 on n2 does not answer (stopped or cut off?); "
      "rank 3 on n2 asks for nothing since 31 s, last did barrier of epoch; "
      "rank 0 on n1 waits in the same since 30 s");
}

TEST(Line, TellsOperationsOfOneNameApartByTheirNumber) {
  const std::string line =
      explain_overdue(nodes_of(1, 4), bucket_overdue(),
                      {does(0, State::waits, kBucket, 14), does(2, State::waits, kBucket, 12),
                       does(3, State::works, kBucket, 19)});
  EXPECT_THAT(line,
              HasSubstr("rank 2 on n1 waits in an earlier operation of that name (its operation 12, that is "
                        "its 14) since 30 s"));
  EXPECT_THAT(line, HasSubstr("rank 3 on n1 is in a later operation of that name"));
  EXPECT_THAT(line, EndsWith("rank 0 on n1 waits in the same since 30 s"));
}

TEST(Line, NamesTheOperationThatTheOverdueOneComesAfter) {
  Overdue overdue = bucket_overdue();
  overdue.status.operation = "all_reduce of bucket 0 (8 bytes)";
  overdue.status.number = 11;
  EXPECT_EQ(explain_overdue(nodes_of(1, 2), overdue, {does(0, State::left, "barrier of epoch", 10)}),
            "rank 1 on n1: all_reduce of bucket 3 (26214400 bytes) did not end within 30 s "
            "(LOCKSTEP_TIMEOUT), it is "
            "after all_reduce of bucket 0 (8 bytes): rank 0 on n1 has left World, last did barrier of epoch");
}

TEST(Line, SaysSinceWhenOnlyAsExactlyAsRanksAgree) {
  const std::string line =
      explain_overdue(nodes_of(1, 4), bucket_overdue(),
                      {does(0, State::waits, kBucket, 14, 30), does(2, State::waits, kBucket, 14, 31),
                       does(3, State::waits, kBucket, 14, 32)});
  EXPECT_THAT(line, EndsWith("ranks 0,2-3 on n1 wait in the same since 32 s"));
  EXPECT_THAT(
      explain_overdue(nodes_of(1, 3), bucket_overdue(),
                      {does(0, State::asked, kBucket, 14, 5), does(2, State::asked, kBucket, 14, 60)}),
      EndsWith("ranks 0,2 on n1 have asked for the same 5.0 s to 60 s ago and have not begun it"));
}

TEST(Line, StaysReadableForThousandsOfRanks) {
  const Roster roster = nodes_of(512, 8);
  std::vector<Status> statuses;
  statuses.reserve(4096);
  for (int rank = 0; rank < 4096; ++rank) {
    statuses.push_back(rank == 3 ? does(rank, State::idle, "barrier of epoch", 3)
                                 : does(rank, State::waits, kBucket, 14, 30));
  }
  EXPECT_THAT(
      explain_overdue(roster, bucket_overdue(), statuses),
      EndsWith(": rank 3 on n1 asks for nothing since 30 s, last did barrier of epoch; ranks 0,2,4-4095 on "
               "512 nodes wait in the same since 30 s"));

  // Every second rank is stopped, and the others all do something else.
  for (int rank = 0; rank < 4096; ++rank) {
    statuses[static_cast<std::size_t>(rank)] =
        rank % 2 == 0 ? does(rank, State::silent)
                      : does(rank, State::waits, "broadcast of " + std::to_string(rank));
  }
  const std::string line = explain_overdue(roster, bucket_overdue(), statuses);
  EXPECT_THAT(line, HasSubstr("ranks 0,2,4,6,8,10,12,14,... (2048 ranks) on 512 nodes do not answer"));
  EXPECT_THAT(line, EndsWith("; 2036 other ranks do other things"));
  EXPECT_LT(line.size(), 1500U);
}

TEST(Line, SaysWhoIsGone) {
  EXPECT_EQ(explain_gone(nodes_of(2, 2), 2, does(0, State::waits, kBucket, 14)),
            "rank 2 on n2 is gone (its process ended); rank 0 on n1 is in " + kBucket);
  EXPECT_EQ(explain_gone(nodes_of(2, 2), 2, does(0, State::idle)),
            "rank 2 on n2 is gone (its process ended)");
}

TEST(Status, TravelsWhole) {
  const std::vector<Status> statuses = {does(7, State::works, kBucket, 14), does(8, State::gone)};
  const auto back = unpack_statuses(pack(statuses));
  ASSERT_THAT(back, SizeIs(2));
  EXPECT_EQ(back[0].rank, 7);
  EXPECT_EQ(back[0].state, State::works);
  EXPECT_EQ(back[0].number, 14U);
  EXPECT_EQ(back[0].lasts_ns, 30 * kSecond);
  EXPECT_EQ(back[0].operation, kBucket);
  EXPECT_EQ(back[1].state, State::gone);

  const Overdue overdue = unpack_overdue(pack(bucket_overdue()));
  EXPECT_EQ(overdue.operation, kBucket);
  EXPECT_EQ(overdue.seconds, 30U);
  EXPECT_EQ(overdue.status.number, 14U);
}

TEST(Status, IsRefusedWhenDamaged) {
  const std::string bytes = pack(std::vector{does(7, State::works, kBucket, 14)});
  EXPECT_THROW(unpack_statuses(bytes.substr(0, bytes.size() - 1)), Error);
  EXPECT_THROW(unpack_statuses(bytes + "x"), Error);
  std::string wrong_state = bytes;
  wrong_state[4] = 100;
  EXPECT_THROW(unpack_statuses(wrong_state), Error);
  EXPECT_THROW(unpack_overdue(""), Error);
}

TEST(Status, IsWhatThisProcessDoes) {
  note_asked("the first");
  EXPECT_EQ(status_of_this_process(5).state, State::asked);
  note_began("the first");
  EXPECT_EQ(status_of_this_process(5).state, State::works);
  {
    const WaitingNote note;
    const Status status = status_of_this_process(5);
    EXPECT_EQ(status.state, State::waits);
    EXPECT_EQ(status.operation, "the first");
    EXPECT_EQ(status.rank, 5);
  }
  note_ended("the first");
  const Status status = status_of_this_process(5);
  EXPECT_EQ(status.state, State::idle);
  EXPECT_EQ(status.operation, "the first");
  EXPECT_LT(status.lasts_ns, 60 * kSecond);
}

}  // namespace
}  // namespace lockstep::comm::watch
