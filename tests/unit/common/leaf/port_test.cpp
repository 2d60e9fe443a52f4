#include <gtest/gtest.h>

#include "common/leaf/network.h"

namespace lockstep {
namespace {

TEST(BindPort, TakesAFreePortOfTheRange) {
  int first = 0;
  UniqueFd socket = bind_port(0, 0, false, first);
  ASSERT_TRUE(socket);
  ASSERT_GT(first, 0);
  int second = 0;
  EXPECT_FALSE(bind_port(first, first, false, second));
  socket.reset();
  EXPECT_TRUE(bind_port(first, first, false, second));
  EXPECT_EQ(second, first);
}

}  // namespace
}  // namespace lockstep
