#include "plugin/spank/pinning.h"

#include <gtest/gtest.h>

#include "plugin/spank/report.h"

namespace lockstep::spank {
namespace {

TEST(Pinning, ReadsAPlan) {
  const std::vector<Placement> plan = parse_plan("0 0-1,4 2 0 3\n1 8-9 - 0,1 2\n", 2);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].cpus, "0-1,4");
  EXPECT_EQ(plan[0].workers, "2");
  EXPECT_EQ(plan[0].threads, 3);
  EXPECT_EQ(plan[1].workers, "");
  EXPECT_EQ(plan[1].numa, "0,1");
}

TEST(Pinning, RefusesWhatIsNoPlan) {
  for (const char* text :
       {"", "0 0 - 0 1\n", "1 0 - 0 1\n0 1 - 0 1\n", "0 0 - 0\n1 1 - 0 1\n", "0 x - 0 1\n1 1 - 0 1\n",
        "0 0 y 0 1\n1 1 - 0 1\n", "0 0 - 0 -4\n1 1 - 0 1\n", "hello\n"}) {
    EXPECT_THROW(parse_plan(text, 2), Refusal) << text;
  }
}

TEST(Pinning, OpenMpPlacesAreCores) {
  const auto siblings = [](int cpu) { return std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4); };
  EXPECT_EQ(openmp_places("0-1,4-5", siblings), "{0,4},{1,5}");
  EXPECT_EQ(openmp_places("0-1,4", siblings), "{0,4},{1}");
  EXPECT_EQ(openmp_places("5", siblings), "{5}");
  EXPECT_EQ(openmp_places("", siblings), "");
}

TEST(Pinning, BindsToComputeAndWorkerCpusTogether) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  bind({std::to_string(first), "", "0", 1});
  cpu_set_t now;
  ASSERT_EQ(::sched_getaffinity(0, sizeof now, &now), 0);
  EXPECT_EQ(format_cpus(now), std::to_string(first));
  EXPECT_THROW(bind({"1023", "", "", 1}), Refusal);
  ::sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace lockstep::spank
