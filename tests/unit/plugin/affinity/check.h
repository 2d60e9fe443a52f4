// The rules of plan.h, checked for any plan.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "plugin/affinity/plan.h"

namespace lockstep::affinity {

// Checks a plan against facts that the test works out from the machine.
class Check {
 public:
  Check(const Machine& machine, const Request& request) : request_(request) {
    const auto has = [](const std::vector<int>& list, int item) {
      return std::find(list.begin(), list.end(), item) != list.end();
    };
    for (std::size_t c = 0; c < machine.cores.size(); ++c) {
      for (const int cpu : machine.cores[c].cpus) {
        if (!has(machine.allowed, cpu) || !(request.within.empty() || has(request.within, cpu))) continue;
        core_of_[cpu] = static_cast<int>(c);
        domain_of_[cpu] = machine.cores[c].domain;
        cores_[static_cast<int>(c)].insert(cpu);
      }
    }
    std::map<int, int> sizes;
    for (const auto& [core, cpus] : cores_) largest_ = std::max(largest_, ++sizes[domain_of_[*cpus.begin()]]);
    for (const Gpu& gpu : machine.gpus) {
      for (const int domain : gpu.domains) {
        if (sizes[domain] > 0) domains_of_gpu_[gpu.bus_id].insert(domain);
      }
    }
  }

  void check(const std::vector<TaskPlan>& plans) {
    ASSERT_EQ(plans.size(), static_cast<std::size_t>(request_.tasks));
    for (const TaskPlan& plan : plans) {
      one_task(plan);
      if (testing::Test::HasFatalFailure()) return;
    }
    shares(plans);
    if (request_.policy != Policy::core) gpus(plans);
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
      const bool has_all = request_.cpus_per_task > 0 && (request_.smt > 0 || mask(plan).size() == wanted());
      if (!has_all) smallest = std::min(smallest, mine.size());
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
      EXPECT_LE(largest, std::max(smallest, smallest + 1)) << "shares differ by more than one core";
      if (request_.policy == Policy::core && request_.smt == 0 && request_.cpus_per_task == 0) {
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

  std::size_t wanted() const { return static_cast<std::size_t>(request_.cpus_per_task); }

  std::set<int> domains(const TaskPlan& plan) const {
    std::set<int> found;
    for (const int cpu : mask(plan)) found.insert(domain_of_.at(cpu));
    return found;
  }

  // The domains of the task's GPUs that have usable cores.
  std::set<int> domains_of_gpus(const TaskPlan& plan) const {
    std::set<int> found;
    for (const std::string& gpu : plan.gpus) {
      const auto at = domains_of_gpu_.find(gpu);
      if (at != domains_of_gpu_.end()) found.insert(at->second.begin(), at->second.end());
    }
    return found;
  }

  static bool meet(const std::set<int>& a, const std::set<int>& b) {
    return std::any_of(a.begin(), a.end(), [&](int item) { return b.count(item) > 0; });
  }

  // A task is away from its GPU only if each core there has a task that belongs there.
  void gpus(const std::vector<TaskPlan>& plans) {
    for (const TaskPlan& away : plans) {
      const std::set<int> home = domains_of_gpus(away);
      if (home.empty() || meet(home, domains(away))) continue;
      std::set<int> busy;
      for (const TaskPlan& other : plans) {
        if (!meet(home, domains(other))) continue;
        EXPECT_TRUE(meet(domains_of_gpus(other), domains(other)))
            << "task " << away.task << " is away from its GPU, and task " << other.task << " is there";
        const std::set<int> theirs = cores(other);
        busy.insert(theirs.begin(), theirs.end());
      }
      for (const auto& [core, cpus] : cores_) {
        if (home.count(domain_of_.at(*cpus.begin())) == 0) continue;
        EXPECT_EQ(busy.count(core), 1U)
            << "core " << core << " is idle, and its GPU's task " << away.task << " is elsewhere";
      }
    }
  }

  const Request& request_;
  std::map<std::string, std::set<int>> domains_of_gpu_;
  std::map<int, int> core_of_, domain_of_;
  std::map<int, std::set<int>> cores_;
  int largest_ = 0;
};

}  // namespace lockstep::affinity
