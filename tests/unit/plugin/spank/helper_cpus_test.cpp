#include "plugin/spank/helper_cpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::spank {
namespace {

std::string spare(const std::string& step, const std::string& masks, const std::string& computing) {
  return format_cpus(spare_cpus(parse_cpus(step), parse_cpus(masks), parse_cpus(computing)));
}

TEST(HelperCpus, AreThoseThatNoTaskWasGiven) {
  EXPECT_EQ(spare("0-7", "0-3,6", "0-3"), "4-5,7");
}

TEST(HelperCpus, AreTheLoadersWhereTasksHaveAll) {
  EXPECT_EQ(spare("0-7", "0-7", "0-2,4-6"), "3,7");
}

TEST(HelperCpus, AreAllWhereTasksComputeOnAll) {
  EXPECT_EQ(spare("0-7", "0-7", "0-7"), "0-7");
}

TEST(HelperCpus, OfTheStepAreAskedFromTheKernelAndTheTasksOwnStay) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  const auto whole = step_cpus(static_cast<std::uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN)));
  cpu_set_t after;
  ASSERT_EQ(::sched_getaffinity(0, sizeof after, &after), 0);
  ::sched_setaffinity(0, sizeof before, &before);
  ASSERT_TRUE(whole);
  EXPECT_GE(CPU_COUNT(&*whole), CPU_COUNT(&before));
  EXPECT_TRUE(CPU_EQUAL(&after, &one));
}

TEST(HelperCpus, AreUnknownWhereNothingConfinesAStepThatHasPartOfTheNode) {
  if (::sysconf(_SC_NPROCESSORS_ONLN) < 2) GTEST_SKIP() << "needs two CPUs";
  cpu_set_t now;
  ASSERT_EQ(::sched_getaffinity(0, sizeof now, &now), 0);
  if (CPU_COUNT(&now) < ::sysconf(_SC_NPROCESSORS_ONLN)) GTEST_SKIP() << "this test itself is confined";
  EXPECT_FALSE(step_cpus(1));
}

}  // namespace
}  // namespace lockstep::spank
