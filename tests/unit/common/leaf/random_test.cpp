#include "common/leaf/random.h"

#include <gtest/gtest.h>

namespace lockstep {
namespace {

TEST(Random, HexHasTwoDigitsForEachByteAndNeverRepeats) {
  const std::string one = random_hex(32);
  EXPECT_EQ(one.size(), 64U);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one, random_hex(32));
}

}  // namespace
}  // namespace lockstep
