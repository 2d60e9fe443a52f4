#include "runtime/comm/shm/segment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/error.h"

namespace lockstep::comm::shm {
namespace {

TEST(Segment, IsFoundByAnyAddressInItAndByNoOther) {
  const auto memory = allocate(10'000);
  auto* bytes = static_cast<std::byte*>(memory.get());
  ASSERT_TRUE(find(bytes + 100, 9'900));
  EXPECT_EQ(find(bytes + 100, 9'900)->offset, 100U);
  EXPECT_FALSE(find(bytes, std::size_t{1} << 30)) << "ends before";
  int elsewhere = 0;
  EXPECT_FALSE(find(&elsewhere, sizeof elsewhere));
}

TEST(Segment, OfTwoMebibytesOrMoreIsAlignedToTwoMebibytes) {
  const auto memory = allocate(std::size_t{3} << 20);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(memory.get()) % (std::size_t{2} << 20), 0U);
}

TEST(Segment, ShowsItsOwnersWritesAndOutlivesItsOwnersPointer) {
  auto memory = allocate(64);
  const auto seen = map(find(memory.get(), 64)->segment);
  *static_cast<int*>(memory.get()) = 42;
  EXPECT_EQ(*static_cast<int*>(seen.get()), 42);
  memory.reset();
  EXPECT_EQ(*static_cast<int*>(seen.get()), 42);
}

TEST(Segment, WithAnotherInodeOrDescriptorIsRefused) {
  const auto memory = allocate(64);
  auto segment = find(memory.get(), 64)->segment;
  segment.inode += 1;
  EXPECT_THROW(map(segment), Error);
  segment.descriptor = 1'000'000;
  EXPECT_THROW(map(segment), Error);
}

TEST(Segment, ThatDoesNotFitIsRefusedWithTheMemoryThatIsLeft) {
  try {
    allocate(std::size_t{1} << 60);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::ContainsRegex(
                                  "1152921504606846976 bytes\\) of memory to share with the ranks of this "
                                  "node: only .* are available in .*: give the job more memory"));
  }
}

}  // namespace
}  // namespace lockstep::comm::shm
