#include "plugin/spank/srun_link.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

TEST(SrunLink, SurvivesTheWayToTheNode) {
  const SrunLink link{4711, random_key(), "head.cluster", "/home/a, b/c"};
  const SrunLink there = SrunLink::decode(link.encode());
  EXPECT_EQ(there.port, link.port);
  EXPECT_EQ(there.key, link.key);
  EXPECT_EQ(there.host, link.host);
  EXPECT_EQ(there.folder, link.folder);
}

TEST(SrunLink, RefusesWhatIsNone) {
  const std::string key(64, 'a');
  EXPECT_NO_THROW(SrunLink::decode("1," + key + ",h,/"));
  for (const std::string& text : {std::string(), std::string(","), std::string("1,,h,/"), "x," + key + ",h,/",
                                  "70000," + key + ",h,/", "1," + key + ",h h,/", "1," + key + ",h,relative",
                                  "1," + key.substr(1) + "G,h,/", "1," + key + ",h"}) {
    EXPECT_THROW(SrunLink::decode(text), Refusal) << text;
  }
}

TEST(SrunLink, KeysDiffer) {
  EXPECT_NE(random_key(), random_key());
}

TEST(BindPort, TakesTheNextFreePortOfTheRange) {
  int first = 0;
  const int one = bind_port(0, 0, first);
  ASSERT_GE(one, 0);
  ASSERT_GT(first, 0);
  int second = 0;
  EXPECT_EQ(bind_port(first, first, second), -1);
  ::close(one);
  const int two = bind_port(first, first, second);
  EXPECT_GE(two, 0);
  EXPECT_EQ(second, first);
  ::close(two);
}

}  // namespace
}  // namespace lockstep::spank
