// The rules of plan.h as properties of generated machines and requests; and a part of a machine gets the plan of the machine
// that consists of this part.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "common/leaf/cpu_list.h"
#include "plugin/affinity/plan.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/topology.h"
#include "tests/unit/plugin/affinity/check.h"
#include "tests/unit/plugin/affinity/generated.h"

namespace lockstep::affinity {
namespace {

constexpr int kSeeds = 8;
constexpr int kMachines = 250;  // of each seed
constexpr int kRequests = 4;    // on each machine

// Attaches the GPUs to the domains of these NUMA nodes.
void attach_gpus(Machine& machine, const std::vector<std::vector<int>>& nodes_of_gpus) {
  for (const std::vector<int>& nodes : nodes_of_gpus) {
    Gpu gpu{fmt::format("0000:{:02x}:00.0", machine.gpus.size()), {}};
    for (std::size_t d = 0; d < machine.domains.size(); ++d) {
      if (std::count(nodes.begin(), nodes.end(), machine.domains[d].node) > 0)
        gpu.domains.push_back(static_cast<int>(d));
    }
    machine.gpus.push_back(std::move(gpu));
  }
}

class AffinityProperties : public testing::TestWithParam<int> {
 protected:
  int pick(int low, int high) { return std::uniform_int_distribution<>(low, high)(random_); }

  // The NUMA nodes of up to four GPUs, each one or two nodes that have some of the CPUs.
  std::vector<std::vector<int>> random_gpus(const Machine& smaller) {
    std::vector<int> nodes;
    for (const Domain& domain : smaller.domains) nodes.push_back(domain.node);
    std::vector<std::vector<int>> gpus(static_cast<std::size_t>(std::max(0, pick(-3, 4))));
    for (std::vector<int>& gpu : gpus) {
      gpu.push_back(nodes[static_cast<std::size_t>(pick(0, static_cast<int>(nodes.size()) - 1))]);
      if (pick(0, 3) == 0) gpu.push_back(nodes.front());
    }
    return gpus;
  }

  Request random_request(const Machine& machine, int cpus) {
    Request request;
    request.tasks = pick(1, cpus + 3);
    request.policy = static_cast<Policy>(pick(0, 3));
    request.memory = static_cast<Memory>(pick(0, 1));
    request.workers = std::max(0, pick(-2, 2));
    request.smt = std::max(0, pick(-3, 2));
    request.cpus_per_task = std::max(0, pick(-6, 6));
    request.gpus = find_gpus(machine, "all");
    std::shuffle(request.gpus.begin(), request.gpus.end(), random_);
    return request;
  }

  std::mt19937 random_{static_cast<unsigned>(GetParam())};
};

TEST_P(AffinityProperties, HoldForGeneratedMachinesAndRequests) {
  for (int m = 0; m < kMachines && !HasFailure(); ++m) {
    const GeneratedMachine generated(random_);
    const std::vector<int> cpus = some_of(random_, generated.online, pick(3, 10) / 10.0);
    Machine whole = generated.whole();
    Machine granted = generated.granted(cpus);
    granted.known = generated.known;
    Machine smaller = generated.smaller(cpus);
    const auto gpus = random_gpus(smaller);
    for (Machine* const machine : {&whole, &granted, &smaller}) attach_gpus(*machine, gpus);
    for (int r = 0; r < kRequests && !HasFailure(); ++r) {
      const Request request = random_request(whole, static_cast<int>(cpus.size()));
      SCOPED_TRACE(fmt::format(
          "machine {}: {}: CPUs {}, {} tasks, policy {}, memory {}, {} workers, smt {}, {} CPUs per task, {} GPUs",
          m, generated.description, format_cpu_list(cpus), request.tasks, static_cast<int>(request.policy),
          static_cast<int>(request.memory), request.workers, request.smt, request.cpus_per_task,
          request.gpus.size()));
      Request part = request;
      part.within = cpus;
      const std::vector<TaskPlan> plans = make_plan(whole, part);
      Check(whole, part).check(plans);
      for (const TaskPlan& plan : plans) {
        EXPECT_TRUE(std::includes(generated.memory_nodes.begin(), generated.memory_nodes.end(),
                                  plan.numa.begin(), plan.numa.end()))
            << "NUMA nodes " << format_cpu_list(plan.numa) << " do not all have memory";
      }
      const std::string text = to_plain(plans);
      EXPECT_EQ(text, to_plain(make_plan(granted, request))) << "differs in a cgroup";
      EXPECT_EQ(text, to_plain(make_plan(smaller, request))) << "differs on the smaller machine";
      part.within = generated.known;  // offline and hidden CPUs are left out
      EXPECT_EQ(text, to_plain(make_plan(granted, part))) << "differs if hidden CPUs are requested";
      part.within = cpus;
      part.within.push_back(cpus.front());
      std::shuffle(part.within.begin(), part.within.end(), random_);
      EXPECT_EQ(text, to_plain(make_plan(whole, part))) << "depends on the order of the CPUs";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AffinityProperties, testing::Range(0, kSeeds));

TEST(AffinityCpusPerTask, AreNeverExceededAndReachedWherePossible) {
  for (const char* const topology :
       {"core:7 pu:2", "package:2 [numa] l3:3 core:4 pu:2", "package:1 numa:3 core:5 pu:4",
        "package:3 [numa] l3:2 l2:2 core:2 pu:2"}) {
    const Machine machine = load_description(topology);
    const int cpus = static_cast<int>(machine.known.size());
    const int per_core = static_cast<int>(machine.cores.front().cpus.size());
    for (int tasks = 1; tasks <= std::min(static_cast<int>(machine.cores.size()), 40); ++tasks) {
      for (const int wanted : {1, 2, 3, 4, 8, cpus}) {
        Request request;
        request.tasks = tasks;
        request.cpus_per_task = wanted;
        request.policy = Policy::core;
        const std::vector<TaskPlan> plans = make_plan(machine, request);
        SCOPED_TRACE(fmt::format("{} CPUs for each of {} tasks on {}", wanted, tasks, topology));
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
}

}  // namespace
}  // namespace lockstep::affinity
