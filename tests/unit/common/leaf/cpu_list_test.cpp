#include "common/leaf/cpu_list.h"

#include <gmock/gmock.h>

#include "common/leaf/error.h"

namespace lockstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Property;
using testing::Throws;

TEST(CpuList, ReadsRangesInAnyOrderOnce) {
  EXPECT_THAT(parse_cpu_list("4,0-2,1\n"), ElementsAre(0, 1, 2, 4));
  EXPECT_TRUE(parse_cpu_list("").empty());
}

TEST(CpuList, PrintsTheShortestForm) {
  EXPECT_EQ(format_cpu_list({48, 49, 0, 2, 1, 50, 7}), "0-2,7,48-50");
  EXPECT_EQ(format_cpu_list({}), "");
}

TEST(CpuList, NamesThePartThatIsWrong) {
  for (const char* text : {"a", "1-", "3-1", "0,,2", "-1", "99999"}) {
    EXPECT_THAT([&] { parse_cpu_list(text); },
                Throws<UsageError>(Property(&UsageError::what, HasSubstr(text))))
        << text;
  }
}

TEST(CpuList, AThreadBoundToOneCpuSeesThatCpu) {
  const auto before = cpus_of_this_thread();
  bind_this_thread({before.back()});
  EXPECT_THAT(cpus_of_this_thread(), ElementsAre(before.back()));
  bind_this_thread(before);
  EXPECT_EQ(cpus_of_this_thread(), before);
}

}  // namespace
}  // namespace lockstep
