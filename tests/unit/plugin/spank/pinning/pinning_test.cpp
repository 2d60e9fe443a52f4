#include "plugin/spank/pinning/pinning.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <map>
#include <thread>

#include "common/leaf/cpu_list.h"
#include "common/leaf/error.h"

namespace lockstep::spank {
namespace {

TEST(Pinning, ReadsAPlan) {
  const std::vector<TaskPlacement> plan = parse_plan("0 0-1,4 2 0 3\n1 8-9 - 0,1 2\n", 2);
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_EQ(plan[0].cpus, "0-1,4");
  EXPECT_EQ(plan[0].workers, "2");
  EXPECT_EQ(plan[0].threads, 3);
  EXPECT_EQ(plan[1].workers, "");
  EXPECT_EQ(plan[1].numa, "0,1");
}

TEST(Pinning, ReadsTheGpusAndOpenMpPlacesOfAPlan) {
  const std::vector<TaskPlacement> plan = parse_plan("0 0 - 0 1 0000:07:00.0 {0}\n1 1 - 0 1 - -\n", 2);
  EXPECT_EQ(plan[0].gpus, "0000:07:00.0");
  EXPECT_EQ(plan[0].places, "{0}");
  EXPECT_EQ(plan[1].gpus, "");
  EXPECT_EQ(plan[1].places, "");
}

TEST(Pinning, SlurmsGrantIsPassedToLockstepPin) {
  Config config;
  PinRequest pin;
  pin.policy = "numa";
  const auto line = [&](const Grant& granted) {
    std::string text;
    for (const std::string& each : plan_arguments(config, pin, granted)) text += each + " ";
    return text;
  };
  EXPECT_EQ(line({2, "0-7", 0, ""}),
            "/usr/bin/lockstep-pin plan --tasks 2 --restrict 0-7 --policy numa --mem local ");
  pin.memory = "interleave";
  pin.workers = 1;
  pin.smt = 1;
  EXPECT_EQ(
      line({2, "0-7", 3, "0000:07:00.0,1"}),
      "/usr/bin/lockstep-pin plan --tasks 2 --restrict 0-7 --policy numa --mem interleave --workers 1 --smt 1 --cpus-per-task 3 --gpus 0000:07:00.0,1 ");
}

TEST(Pinning, InterleavesMemoryOverTheNamedNodes) {
  std::thread([] {
    if (::syscall(SYS_set_mempolicy, 0, nullptr, 0) != 0) GTEST_SKIP() << "the kernel has no memory policies";
    interleave_memory({0});
    int policy = 0;
    unsigned long nodes[16] = {};
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &policy, nodes, 1024UL, nullptr, 0UL), 0);
    EXPECT_EQ(policy, 3);
    EXPECT_EQ(nodes[0], 1U);
    EXPECT_THROW(interleave_memory({1000}), Error);
    interleave_memory({});  // does nothing
  }).join();
}

TEST(Pinning, RefusesTextThatIsNotAPlan) {
  for (const char* text :
       {"", "0 0 - 0 1\n", "1 0 - 0 1\n0 1 - 0 1\n", "0 0 - 0\n1 1 - 0 1\n", "0 x - 0 1\n1 1 - 0 1\n",
        "0 0 y 0 1\n1 1 - 0 1\n", "0 0 - 0 -4\n1 1 - 0 1\n", "hello\n"}) {
    EXPECT_THROW(parse_plan(text, 2), Error) << text;
  }
}

TEST(Pinning, BindsToComputeAndWorkerCpusTogether) {
  const std::vector<int> before = cpus_of_this_thread();
  bind({std::to_string(before.front()), std::to_string(before.back()), "0", "", 1, ""});
  EXPECT_EQ(cpus_of_this_thread(),
            parse_cpu_list(std::to_string(before.front()) + "," + std::to_string(before.back())));
  EXPECT_THROW(bind({"8191", "", "", "", 1, ""}), Error);
  bind_this_thread(before);
}

TEST(Pinning, FindsTheOpenMpVariablesOfAnOuterTaskButNotTheUsers) {
  std::map<std::string, std::string> variables{{"LOCKSTEP_CPUS", "0-1,4-5"},
                                               {"OMP_NUM_THREADS", "4"},
                                               {"OMP_PROC_BIND", "close"},
                                               {"OMP_PLACES", "{0,4},{1,5}"}};
  const auto found = [&] {
    std::string names;
    for (const char* const name : outer_openmp_variables([&](const char* each) { return variables[each]; }))
      names += std::string(name) + " ";
    return names;
  };
  EXPECT_EQ(found(), "OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES ");
  variables["OMP_NUM_THREADS"] = "2";
  variables["OMP_PLACES"] = "cores";
  EXPECT_EQ(found(), "OMP_PROC_BIND ");
  variables["LOCKSTEP_CPUS"] = "";
  EXPECT_EQ(found(), "");
}

}  // namespace
}  // namespace lockstep::spank
