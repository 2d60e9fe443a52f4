// Checks the rules of plan.h for many machines, requests and cpusets.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "common/error.h"
#include "common/leaf/cpu_list.h"
#include "plugin/affinity/plan.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/topology.h"

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

// Checks a plan against facts that the test works out from the machine.
class Check {
 public:
  Check(const Machine& machine, const Request& request) : request_(request) {
    const std::vector<int> within = request.within.empty() ? machine.allowed : request.within;
    for (std::size_t c = 0; c < machine.cores.size(); ++c) {
      for (const int cpu : machine.cores[c].cpus) {
        if (std::count(within.begin(), within.end(), cpu) == 0) continue;
        core_of_[cpu] = static_cast<int>(c);
        domain_of_[cpu] = machine.cores[c].domain;
        cores_[static_cast<int>(c)].insert(cpu);
      }
    }
    std::map<int, int> sizes;
    for (const auto& [core, cpus] : cores_) largest_ = std::max(largest_, ++sizes[domain_of_[*cpus.begin()]]);
  }

  void check(const std::vector<TaskPlan>& plans) {
    ASSERT_EQ(plans.size(), static_cast<std::size_t>(request_.tasks));
    for (const TaskPlan& plan : plans) {
      one_task(plan);
      if (testing::Test::HasFatalFailure()) return;
    }
    shares(plans);
  }

 private:
  static std::set<int> mask(const TaskPlan& plan) {
    std::set<int> all(plan.cpus.begin(), plan.cpus.end());
    all.insert(plan.worker_cpus.begin(), plan.worker_cpus.end());
    return all;
  }

  std::set<int> cores(const TaskPlan& plan) const {
    std::set<int> found;
    for (const int cpu : mask(plan)) found.insert(core_of_.at(cpu));
    return found;
  }

  void one_task(const TaskPlan& plan) {
    ASSERT_FALSE(plan.cpus.empty()) << "a task without compute CPUs";
    EXPECT_TRUE(std::is_sorted(plan.cpus.begin(), plan.cpus.end()));
    EXPECT_EQ(plan.threads, static_cast<int>(plan.cpus.size()));
    EXPECT_FALSE(plan.why.empty());
    EXPECT_FALSE(plan.numa.empty());
    std::set<int> domains;
    for (const int cpu : mask(plan)) {
      ASSERT_EQ(core_of_.count(cpu), 1U) << "CPU " << cpu << " is outside of the cpuset";
      domains.insert(domain_of_[cpu]);
    }
    std::vector<int> both;
    std::set_intersection(plan.cpus.begin(), plan.cpus.end(), plan.worker_cpus.begin(),
                          plan.worker_cpus.end(), std::back_inserter(both));
    const bool share = !plan.worker_cpus.empty() && plan.worker_cpus == plan.cpus;
    EXPECT_TRUE(both.empty() || share);
    EXPECT_EQ(share, plan.why.find("share the compute CPUs") != std::string::npos);
    if (!share) {
      EXPECT_EQ(plan.worker_cpus.size(), static_cast<std::size_t>(request_.workers));
    }

    const int fair = static_cast<int>(cores_.size()) / request_.tasks;
    const bool fits = fair <= largest_ || request_.tasks > static_cast<int>(cores_.size());
    if (request_.policy == Policy::automatic && fits) {
      EXPECT_EQ(domains.size(), 1U) << "straddles NUMA nodes: " << plan.why;
    }
  }

  void shares(const std::vector<TaskPlan>& plans) {
    std::map<int, std::set<int>> owners;  // core -> tasks
    std::map<int, int> users;             // CPU -> number of tasks
    std::size_t smallest = SIZE_MAX;
    std::size_t largest = 0;
    for (const TaskPlan& plan : plans) {
      const std::set<int> mine = cores(plan);
      smallest = std::min(smallest, mine.size());
      largest = std::max(largest, mine.size());
      for (const int core : mine) owners[core].insert(plan.task);
      for (const int cpu : mask(plan)) ++users[cpu];
    }
    std::size_t fewest_tasks = SIZE_MAX;
    std::size_t most_tasks = 0;
    for (const auto& [core, tasks] : owners) {
      fewest_tasks = std::min(fewest_tasks, tasks.size());
      most_tasks = std::max(most_tasks, tasks.size());
    }
    if (request_.tasks <= static_cast<int>(cores_.size())) {
      EXPECT_EQ(most_tasks, 1U) << "a core is split while there are whole cores for all";
      EXPECT_LE(largest - smallest, 1U) << "shares differ by more than one core";
      if (request_.policy == Policy::core && request_.smt == 0) {
        EXPECT_EQ(owners.size(), cores_.size()) << "cores left idle";
      }
      return;
    }
    EXPECT_EQ(owners.size(), cores_.size()) << "a core is idle while others are shared";
    std::size_t cpus = 0;
    for (const auto& [core, all] : cores_) cpus += all.size();
    int most_users = 0;
    for (const auto& [cpu, count] : users) most_users = std::max(most_users, count);
    const int tasks = request_.tasks;
    if (tasks <= static_cast<int>(cpus) && request_.workers == 0) {
      EXPECT_EQ(most_users, 1) << "a CPU is shared while others are free";
    }
    if (tasks > static_cast<int>(cpus)) {
      EXPECT_LE(most_users, (tasks + static_cast<int>(cpus) - 1) / static_cast<int>(cpus)) << "not balanced";
    }
  }

  const Request& request_;
  std::map<int, int> core_of_, domain_of_;
  std::map<int, std::set<int>> cores_;
  int largest_ = 0;
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
