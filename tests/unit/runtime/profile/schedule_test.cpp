#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "common/error.h"
#include "runtime/profile/profiler.h"

namespace lockstep::profile {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string states(const Schedule& schedule, std::uint64_t steps) {
  std::string text;
  for (std::uint64_t step = 0; step < steps; ++step) text += "-wA"[static_cast<int>(schedule.state(step))];
  return text;
}

TEST(Schedule, WaitsWarmsUpAndIsActiveAsOftenAsItSays) {
  EXPECT_EQ(states({.wait = 2, .warmup = 1, .active = 3, .repeat = 2}, 15), "--wAAA--wAAA---");
  EXPECT_EQ(states({.active = 2}, 4), "AA--");
}

TEST(Schedule, KnowsHowOftenItWasActive) {
  const Schedule schedule{.wait = 1, .active = 2, .repeat = 2};
  std::string ended;
  for (std::uint64_t steps = 0; steps < 10; ++steps) ended += std::to_string(schedule.cycles_ended(steps));
  EXPECT_EQ(ended, "0001112222");
}

TEST(Schedule, IsReadFromText) {
  const Schedule all = parse_schedule("wait:10,warmup:2,active:3,repeat:4");
  EXPECT_EQ(all.wait, 10);
  EXPECT_EQ(all.warmup, 2);
  EXPECT_EQ(all.active, 3);
  EXPECT_EQ(all.repeat, 4);
  const Schedule some = parse_schedule("active:3,wait:1");
  EXPECT_EQ(some.wait, 1);
  EXPECT_EQ(some.warmup, 0);
  EXPECT_EQ(some.active, 3);
  EXPECT_EQ(some.repeat, 1);
  EXPECT_FALSE(some.stop);
  EXPECT_TRUE(parse_schedule("active:3,stop").stop);
  EXPECT_FALSE(some.shapes);
  EXPECT_TRUE(parse_schedule("shapes,active:3").shapes);
}

TEST(Schedule, ThatIsWrongIsRefusedInOneLine) {
  for (const char* text : {"",
                           "on",
                           "3",
                           "active",
                           "active:",
                           "active:0",
                           "active:x",
                           "active:3x",
                           "active:-1",
                           "active: 3",
                           "active:3,active:4",
                           "active:3,,wait:1",
                           "active:3,stop,stop",
                           "shapes,active:3,shapes",
                           "active:3,stop:1",
                           "stop",
                           "steps:3",
                           "wait:1",
                           "active:3;wait:1",
                           "active:3,repeat:0",
                           "active:1000001",
                           "active:99999999999999999999",
                           ":3",
                           "ACTIVE:3"}) {
    try {
      parse_schedule(text);
      ADD_FAILURE() << "accepted '" << text << "'";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("profile schedule"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  }
}

}  // namespace
}  // namespace lockstep::profile
