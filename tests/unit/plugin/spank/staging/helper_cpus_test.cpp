#include "plugin/spank/staging/helper_cpus.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "common/leaf/cpu_list.h"

namespace lockstep::spank {
namespace {

std::string spare(const char* step, const char* of_tasks, const char* computing) {
  return format_cpu_list(
      spare_cpus(parse_cpu_list(step), parse_cpu_list(of_tasks), parse_cpu_list(computing)));
}

TEST(HelperCpus, AreTheCpusWithoutATask) {
  EXPECT_EQ(spare("0-7", "0-3,6", "0-3"), "4-5,7");
}

TEST(HelperCpus, AreTheLoaderCpusWhereTasksHaveAllCpus) {
  EXPECT_EQ(spare("0-7", "0-7", "0-2,4-6"), "3,7");
}

TEST(HelperCpus, AreAllCpusWhereTasksComputeOnAllCpus) {
  EXPECT_EQ(spare("0-7", "0-7", "0-7"), "0-7");
}

TEST(HelperCpus, FindingTheStepsCpusKeepsTheTasksMask) {
  const std::vector<int> before = cpus_of_this_thread();
  bind_this_thread({before.front()});
  const std::vector<int> whole = step_cpus(static_cast<std::uint32_t>(::sysconf(_SC_NPROCESSORS_ONLN)));
  const std::vector<int> after = cpus_of_this_thread();
  bind_this_thread(before);
  EXPECT_GE(whole.size(), before.size());
  EXPECT_EQ(after, std::vector<int>{before.front()});
}

TEST(HelperCpus, AreUnknownForAnUnconfinedStepWithPartOfTheNode) {
  const long online = ::sysconf(_SC_NPROCESSORS_ONLN);
  if (online < 2) GTEST_SKIP() << "needs two CPUs";
  if (static_cast<long>(cpus_of_this_thread().size()) < online)
    GTEST_SKIP() << "this test itself is confined";
  EXPECT_TRUE(step_cpus(1).empty());
}

}  // namespace
}  // namespace lockstep::spank
