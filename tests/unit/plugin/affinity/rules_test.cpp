// Checks the rules of plan.h for many machines, requests and cpusets.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "plugin/affinity/plan.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/topology.h"
#include "tests/unit/plugin/affinity/check.h"

namespace lockstep::affinity {
namespace {

constexpr const char* kTopologies[] = {
    "pu:1",
    "core:2 pu:1",
    "core:7 pu:2",
    "numa:2 pu:6",
    "package:2 [numa] l3:1 core:4 pu:2",
    "package:2 [numa] l3:3 core:4 pu:2",
    "package:2 numa:2 l3:2 core:3 pu:2",
    "package:2 numa:4 l3:2 core:4 pu:1",
    "package:1 numa:3 core:5 pu:4",
    "package:3 [numa] l3:2 l2:2 core:2 pu:2",
    "package:2 [numa] l3:12 core:8 pu:2",
};

std::string describe(const Machine& machine, const Request& request) {
  return fmt::format("{} tasks {} policy {} workers {} smt {} restrict {}", machine.source, request.tasks,
                     static_cast<int>(request.policy), request.workers, request.smt,
                     format_cpu_list(request.within));
}

void check_rules(const Machine& machine, const Request& request) {
  SCOPED_TRACE(describe(machine, request));
  const std::vector<TaskPlan> plans = make_plan(machine, request);
  Check(machine, request).check(plans);
  EXPECT_EQ(to_plain(plans), to_plain(make_plan(machine, request))) << "not deterministic";
}

class AffinityRules : public testing::TestWithParam<const char*> {};

TEST_P(AffinityRules, HoldForEveryNumberOfTasksAndPolicy) {
  const Machine machine = load_description(GetParam());
  const int cpus = static_cast<int>(machine.known.size());
  for (const Policy policy : {Policy::automatic, Policy::numa, Policy::cache, Policy::core}) {
    for (int tasks = 1; tasks <= std::min(2 * cpus + 1, 70); ++tasks) {
      for (const int workers : {0, 1, 3}) {
        Request request;
        request.tasks = tasks;
        request.policy = policy;
        request.workers = workers;
        request.smt = workers == 3 ? 1 : 0;
        check_rules(machine, request);
        if (HasFatalFailure() || HasNonfatalFailure()) return;
      }
    }
  }
}

TEST_P(AffinityRules, HoldInsideAnyCpuset) {
  const Machine machine = load_description(GetParam());
  std::mt19937 random(20240607);
  for (int round = 0; round < 200; ++round) {
    Request request;
    const double keep = std::uniform_real_distribution<>(0.1, 1.0)(random);
    for (const int cpu : machine.known) {
      if (std::bernoulli_distribution(keep)(random)) request.within.push_back(cpu);
    }
    if (request.within.empty()) request.within.push_back(machine.known.back());
    request.tasks = std::uniform_int_distribution<>(1, static_cast<int>(request.within.size()) + 2)(random);
    request.workers = std::uniform_int_distribution<>(0, 2)(random);
    request.policy = static_cast<Policy>(std::uniform_int_distribution<>(0, 3)(random));
    check_rules(machine, request);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

TEST_P(AffinityRules, CpusPerTaskIsNeverExceededAndReachedWherePossible) {
  const Machine machine = load_description(GetParam());
  const int cpus = static_cast<int>(machine.known.size());
  const int per_core = static_cast<int>(machine.cores.front().cpus.size());
  for (int tasks = 1; tasks <= std::min(static_cast<int>(machine.cores.size()), 40); ++tasks) {
    for (const int wanted : {1, 2, 3, 4, 8, cpus}) {
      Request request;
      request.tasks = tasks;
      request.cpus_per_task = wanted;
      request.policy = Policy::core;
      const std::vector<TaskPlan> plans = make_plan(machine, request);
      SCOPED_TRACE(fmt::format("{} CPUs for each of {} tasks on {}", wanted, tasks, GetParam()));
      const bool enough =
          (wanted + per_core - 1) / per_core * tasks <= static_cast<int>(machine.cores.size());
      for (const TaskPlan& plan : plans) {
        const int got = static_cast<int>(plan.cpus.size());
        EXPECT_LE(got, wanted);
        if (enough) {
          EXPECT_EQ(got, wanted);
        }
        EXPECT_EQ(got < wanted, plan.why.find("an equal share is") != std::string::npos) << plan.why;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, AffinityRules, testing::ValuesIn(kTopologies));

}  // namespace
}  // namespace lockstep::affinity
