#include "plugin/spank/pinning.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

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

TEST(Pinning, ReadsTheGpusOfAPlan) {
  const std::vector<Placement> plan = parse_plan("0 0 - 0 1 0000:07:00.0\n1 1 - 0 1 -\n", 2);
  EXPECT_EQ(plan[0].gpus, "0000:07:00.0");
  EXPECT_EQ(plan[1].gpus, "");
}

TEST(Pinning, WhatSlurmGrantedIsHandedOn) {
  Config config;
  PinRequest pin;
  pin.policy = "numa";
  const auto line = [&](const Granted& granted) {
    std::string text;
    for (const std::string& each : plan_arguments(config, pin, granted)) text += each + " ";
    return text;
  };
  EXPECT_EQ(line({2, "0-7", 0, ""}),
            "/usr/bin/lockstep-pin plan --tasks 2 --restrict 0-7 --policy numa --mem local ");
  pin.memory = "interleave";
  pin.workers = 1;
  pin.smt = 1;
  EXPECT_EQ(line({2, "0-7", 3, "0000:07:00.0,1"}),
            "/usr/bin/lockstep-pin plan --tasks 2 --restrict 0-7 --policy numa --mem interleave --workers 1 "
            "--smt 1 "
            "--cpus-per-task 3 --gpus 0000:07:00.0,1 ");
}

TEST(Pinning, InterleavesMemoryOverTheNodesThatItIsGiven) {
  std::thread([] {
    if (::syscall(SYS_set_mempolicy, 0, nullptr, 0) != 0) GTEST_SKIP() << "the kernel has no memory policies";
    interleave_memory({"0", "", "0", "", 1});
    int policy = 0;
    unsigned long nodes[16] = {};
    ASSERT_EQ(::syscall(SYS_get_mempolicy, &policy, nodes, 1024UL, nullptr, 0UL), 0);
    EXPECT_EQ(policy, 3);
    EXPECT_EQ(nodes[0], 1U);
    EXPECT_THROW(interleave_memory({"0", "", "1000", "", 1}), Refusal);
    interleave_memory({"0", "", "", "", 1});  // none named: nothing to do
  }).join();
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
  bind({std::to_string(first), "", "0", "", 1});
  cpu_set_t now;
  ASSERT_EQ(::sched_getaffinity(0, sizeof now, &now), 0);
  EXPECT_EQ(format_cpus(now), std::to_string(first));
  EXPECT_THROW(bind({"1023", "", "", "", 1}), Refusal);
  ::sched_setaffinity(0, sizeof before, &before);
}

}  // namespace
}  // namespace lockstep::spank
