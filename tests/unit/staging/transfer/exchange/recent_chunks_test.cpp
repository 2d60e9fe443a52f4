#include "staging/transfer/exchange/recent_chunks.h"

#include <gtest/gtest.h>

namespace lockstep::transfer {
namespace {

constexpr std::size_t kBytes = 8192;

class RecentChunksTest : public ::testing::Test {
 protected:
  void keep(std::size_t chunk) {
    ChunkBuffers::Buffer data = buffers_.take(kBytes);
    data.bytes()[0] = static_cast<std::byte>(chunk);
    recent_.keep({this, chunk}, std::make_shared<const ChunkBuffers::Buffer>(std::move(data)));
  }
  LentChunk lend(std::size_t chunk) { return recent_.lend({this, chunk}); }

  // One more than may be kept: a chunk that could not be given back would let keep() wait for ever.
  ChunkBuffers buffers_{3 * kBytes, kBytes};
  RecentChunks recent_{2};
};

TEST_F(RecentChunksTest, KeepsTheLastOnes) {
  for (const std::size_t chunk : {1, 2, 3}) keep(chunk);
  EXPECT_EQ(lend(1), nullptr);
  ASSERT_NE(lend(2), nullptr);
  EXPECT_EQ(lend(2)->bytes()[0], std::byte{2});
  EXPECT_NE(lend(3), nullptr);
  const int other = 0;
  EXPECT_EQ(recent_.lend({&other, 3}), nullptr) << "a chunk of another source";
}

TEST_F(RecentChunksTest, AChunkThatIsLentKeepsItsBytesAndItsPlace) {
  keep(1);
  LentChunk first = lend(1);
  for (const std::size_t chunk : {2, 3, 4}) keep(chunk);
  EXPECT_EQ(first->bytes()[0], std::byte{1});
  EXPECT_EQ(lend(1), first);
  EXPECT_EQ(lend(3), nullptr);
  EXPECT_NE(lend(4), nullptr);
}

TEST_F(RecentChunksTest, ASuccessorThatHoldsUpAllChunksTakesNoMemoryFromTheReceiver) {
  keep(1);
  keep(2);
  const LentChunk first = lend(1);
  const LentChunk second = lend(2);
  for (const std::size_t chunk : {3, 4, 5}) {
    keep(chunk);
    EXPECT_EQ(lend(chunk), nullptr);
  }
}

TEST_F(RecentChunksTest, DropsANewChunkThatIsStillStoredIfAllOthersAreLent) {
  keep(1);
  keep(2);
  const LentChunk first = lend(1);
  const LentChunk second = lend(2);
  const auto stored = std::make_shared<const ChunkBuffers::Buffer>(buffers_.take(kBytes));
  recent_.keep({this, 3}, stored);
  EXPECT_EQ(lend(3), nullptr);
  EXPECT_EQ(lend(1), first);
  EXPECT_EQ(lend(2), second);
}

}  // namespace
}  // namespace lockstep::transfer
