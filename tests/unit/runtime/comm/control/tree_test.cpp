// Ranks are threads of one process. They exchange addresses through memory; their connections are real.
#include "runtime/comm/control/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <barrier>
#include <cstring>
#include <thread>

namespace lockstep::comm::control {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class Ranks {
 public:
  Ranks(int nodes, int each) : each_(each), size_(nodes * each), nodes_(nodes), meeting_(size_) {}

  /// Called with a rank and the bytes that it received from all ranks, to damage them.
  std::function<void(int rank, std::size_t bytes, void* all)> damage;

  std::vector<std::optional<Tree>> build() {
    std::vector<std::optional<Tree>> trees(static_cast<std::size_t>(size_));
    std::vector<std::thread> threads;
    threads.reserve(trees.size());
    for (int rank = 0; rank < size_; ++rank) {
      threads.emplace_back([this, rank, &trees] {
        trees[static_cast<std::size_t>(rank)] = build_tree(
            place(rank),
            [this, rank](const void* mine, std::size_t bytes, void* all) { gather(rank, mine, bytes, all); });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return trees;
  }

 private:
  RankInfo place(int rank) const {
    return {.rank = rank,
            .size = size_,
            .local_rank = rank % each_,
            .local_size = each_,
            .node = rank / each_,
            .nodes = nodes_,
            .node_name = "n" + std::to_string(rank / each_ + 1)};
  }

  void gather(int rank, const void* mine, std::size_t bytes, void* all) {
    {
      const std::scoped_lock lock(mutex_);
      table_.resize(bytes * static_cast<std::size_t>(size_));
    }
    meeting_.arrive_and_wait();
    std::memcpy(table_.data() + bytes * static_cast<std::size_t>(rank), mine, bytes);
    meeting_.arrive_and_wait();
    std::memcpy(all, table_.data(), table_.size());
    if (damage) damage(rank, bytes, all);
    meeting_.arrive_and_wait();
  }

  int each_;
  int size_;
  int nodes_;
  std::barrier<> meeting_;
  std::mutex mutex_;
  std::vector<char> table_;
};

std::vector<int> children(const std::optional<Tree>& tree) {
  std::vector<int> ranks;
  if (tree) {
    for (const Child& child : tree->down) ranks.push_back(child.rank);
  }
  return ranks;
}

// The key comes after the number and the name of the node.
void damage_key(void* all, std::size_t bytes, int of_rank) {
  auto* contact = static_cast<char*>(all) + bytes * static_cast<std::size_t>(of_rank);
  if (bytes > 100) contact[4 + 64] ^= 1;
}

TEST(Tree, HasTwoLevels) {
  const auto trees = Ranks(2, 3).build();
  for (const auto& tree : trees) ASSERT_TRUE(tree);
  EXPECT_THAT(children(trees[0]), UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(children(trees[3]), UnorderedElementsAre(4, 5));
  EXPECT_THAT(children(trees[4]), IsEmpty());
  EXPECT_EQ(trees[0]->parent, -1);
  EXPECT_EQ(trees[2]->parent, 0);
  EXPECT_EQ(trees[3]->parent, 0);
  EXPECT_EQ(trees[5]->parent, 3);
  EXPECT_EQ(trees[5]->roster.name(5), "rank 5 on n2");
  EXPECT_THAT(trees[1]->roster.node_of, ElementsAre(0, 0, 0, 1, 1, 1));
}

TEST(Tree, HasAtMost32NodesBelowOne) {
  const auto trees = Ranks(36, 1).build();
  for (const auto& tree : trees) ASSERT_TRUE(tree);
  EXPECT_EQ(children(trees[0]).size(), 32U);
  EXPECT_THAT(children(trees[1]), UnorderedElementsAre(33, 34, 35));
  EXPECT_EQ(trees[34]->parent, 1);
  EXPECT_EQ(trees[32]->parent, 0);
  EXPECT_THAT(ranks_behind(*trees[0], 1), UnorderedElementsAre(1, 33, 34, 35));
  EXPECT_THAT(ranks_behind(*trees[0], 2), ElementsAre(2));
  EXPECT_LT(answer_time(*trees[33]), answer_time(*trees[1]));
  EXPECT_LT(answer_time(*trees[1]), answer_time(*trees[0]));
}

TEST(Tree, ReachesEveryNodeOnceInFewLevels) {
  for (const int nodes : {1, 33, 1000, 1056}) {
    std::vector<int> level(static_cast<std::size_t>(nodes), -1);
    level[0] = 0;
    for (int node = 0; node < nodes; ++node) {
      for (const int below : nodes_below(node, nodes)) {
        EXPECT_EQ(node_above(below), node);
        EXPECT_EQ(level[static_cast<std::size_t>(below)], -1);
        level[static_cast<std::size_t>(below)] = level[static_cast<std::size_t>(node)] + 1;
      }
    }
    EXPECT_THAT(level, ::testing::Each(::testing::AllOf(::testing::Ge(0), ::testing::Le(2)))) << nodes;
  }
}

TEST(Tree, IsOnePerNodeIfNodesCannotConnect) {
  Ranks ranks(2, 2);
  ranks.damage = [](int rank, std::size_t bytes, void* all) {
    if (rank == 2) damage_key(all, bytes, 0);
  };
  ::testing::internal::CaptureStderr();
  const auto trees = ranks.build();
  EXPECT_THAT(
      ::testing::internal::GetCapturedStderr(),
      HasSubstr("lockstep: rank 2 on n2: no connection to rank 0: another process answers there; a rank "
                "that hangs or ends is reported only on its own node\n"));
  for (const auto& tree : trees) ASSERT_TRUE(tree);
  EXPECT_THAT(children(trees[0]), ElementsAre(1));
  EXPECT_THAT(children(trees[2]), ElementsAre(3));
  EXPECT_EQ(trees[2]->parent, -1);
  EXPECT_EQ(trees[3]->parent, 2);
}

TEST(Tree, IsAbsentIfARankCannotConnectOnItsNode) {
  Ranks ranks(1, 3);
  ranks.damage = [](int rank, std::size_t bytes, void* all) {
    if (rank == 2) damage_key(all, bytes, 0);
  };
  ::testing::internal::CaptureStderr();
  const auto trees = ranks.build();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              HasSubstr("lockstep: rank 2 on n1: no local connection to rank 0: Connection refused; a rank"));
  for (const auto& tree : trees) EXPECT_FALSE(tree);
}

int option(const Connection& connection, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  EXPECT_EQ(::getsockopt(connection.fd(), level, name, &value, &length), 0);
  return value;
}

// As a machine that loses power, the other side stops answering and does not close the connection.
TEST(Connection, ToAMachineThatStopsAnsweringEndsAsUnreachable) {
  for (const bool unsent : {false, true}) {
    auto trees = Ranks(2, 1).build();
    Connection& up = *trees[1]->up;
    Connection& down = trees[0]->down.front().connection;
    for (const Connection* end : {&up, &down}) {
      EXPECT_EQ(option(*end, SOL_SOCKET, SO_KEEPALIVE), 1);
      EXPECT_EQ(option(*end, IPPROTO_TCP, TCP_USER_TIMEOUT), 10'000);
      const int shorter = 1;  // so that the test is
      ::setsockopt(end->fd(), IPPROTO_TCP, TCP_KEEPIDLE, &shorter, sizeof shorter);
      ::setsockopt(end->fd(), IPPROTO_TCP, TCP_KEEPINTVL, &shorter, sizeof shorter);
      const int milliseconds = 500;
      ::setsockopt(end->fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof milliseconds);
    }
    sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    const sock_fprog program{1, &drop};
    ASSERT_EQ(::setsockopt(up.fd(), SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), 0);
    if (unsent) down.send(MessageKind::ask);
    std::vector<Message> messages;
    pollfd wait{down.fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 10'000), 1);
    if (unsent) {
      for (int i = 0; i < 2; ++i) down.send(MessageKind::ask);  // gets the error before receive() does
    }
    EXPECT_EQ(down.receive(messages), Connection::End::unreachable);
  }
}

TEST(Connection, DeliversWholeMessagesInOrderAndThenTheEnd) {
  auto trees = Ranks(1, 2).build();
  Connection& up = *trees[1]->up;
  Connection& down = trees[0]->down.front().connection;
  std::string large;
  large.resize(10'000'000, 'x');
  up.send(MessageKind::goodbye, "first");
  up.send(MessageKind::answer, large);
  std::vector<Message> messages;
  while (messages.size() < 2) {
    EXPECT_EQ(down.receive(messages), Connection::End::none);
    up.send_rest();
  }
  EXPECT_EQ(messages[0].kind, MessageKind::goodbye);
  EXPECT_EQ(messages[0].body, "first");
  EXPECT_EQ(messages[1].body, large);

  messages.clear();
  up.send(MessageKind::end, "last");
  up.close();
  EXPECT_EQ(down.receive(messages), Connection::End::closed);
  ASSERT_EQ(messages.size(), 1U);
  EXPECT_EQ(messages[0].body, "last");
}

}  // namespace
}  // namespace lockstep::comm::control
