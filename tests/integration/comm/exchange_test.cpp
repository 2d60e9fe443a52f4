// Messages between pairs of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "common/error.h"
#include "tests/integration/mpi_world.h"

namespace lockstep::comm {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using testing::world;

Communicator& all_ranks() {
  return world().communicator();
}

// The bytes that `from` sends to `to` in a round; none to some.
std::vector<std::uint8_t> message_of(int from, int to, std::size_t most, int round) {
  if ((from * 3 + to + round) % 4 == 0) return {};
  std::vector<std::uint8_t> bytes(most * static_cast<std::size_t>(1 + from + 2 * to) / 16 + 1);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(i * 7 + static_cast<std::size_t>(from * 31 + to + round));
  return bytes;
}

TEST(Exchange, GivesEachRankTheMessagesForIt) {
  const int rank = world().rank();
  for (const std::size_t most : {0, 10, 5000, 2'000'000}) {
    for (int round = 0; round < 4; ++round) {
      std::vector<std::vector<std::uint8_t>> sent;
      std::vector<std::vector<std::uint8_t>> expected;
      std::vector<PeerMessage> sends;
      std::vector<PeerMessage> receives;
      std::vector<std::vector<std::uint8_t>> received;
      sent.reserve(static_cast<std::size_t>(world().size()));
      received.reserve(static_cast<std::size_t>(world().size()));
      for (int peer = 0; peer < world().size(); ++peer) {
        if (peer == rank) continue;
        auto& out = sent.emplace_back(message_of(rank, peer, most, round));
        if (!out.empty()) sends.push_back({peer, out.data(), out.size()});
        expected.push_back(message_of(peer, rank, most, round));
        auto& in = received.emplace_back(expected.back().size());
        if (!in.empty()) receives.push_back({peer, in.data(), in.size()});
      }
      std::int32_t ranks = 1;
      const auto before = all_ranks().all_reduce({&ranks, 1, DataType::i32}, "ranks");
      const auto work = all_ranks().exchange(sends, receives, "messages");
      all_ranks().barrier("the end of a round")->wait();
      work->wait();
      before->wait();
      EXPECT_EQ(ranks, world().size());
      EXPECT_EQ(received, expected) << "up to " << most << " bytes, round " << round;
    }
  }
}

TEST(Exchange, RefusesARankThatDoesNotExist) {
  std::uint8_t byte = 0;
  for (const int peer : {-1, world().rank(), world().size()}) {
    const std::vector<PeerMessage> messages = {{peer, &byte, 1}};
    EXPECT_THAT([&] { all_ranks().exchange(messages, {}, "nothing"); },
                ThrowsMessage<UsageError>(HasSubstr("cannot exchange a message with rank")));
  }
}

}  // namespace
}  // namespace lockstep::comm
