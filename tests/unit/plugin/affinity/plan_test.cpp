// Machines for which a person can work out the right plan.

#include "plugin/affinity/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "common/error.h"
#include "common/files.h"
#include "common/leaf/cpu_list.h"
#include "plugin/affinity/print.h"
#include "plugin/affinity/topology.h"
#include "tests/unit/message_of.h"

namespace lockstep::affinity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Machine data(const std::string& name) {
  return load_description(std::string(LOCKSTEP_TEST_DATA) + "/" + name);
}

Request tasks(int count) {
  Request request;
  request.tasks = count;
  return request;
}

std::vector<std::string> cpus(const std::vector<TaskPlan>& plans) {
  std::vector<std::string> lists;
  lists.reserve(plans.size());
  for (const TaskPlan& plan : plans) lists.push_back(format_cpu_list(plan.cpus));
  return lists;
}

std::vector<std::string> worker_cpus(const std::vector<TaskPlan>& plans) {
  std::vector<std::string> lists;
  lists.reserve(plans.size());
  for (const TaskPlan& plan : plans) lists.push_back(format_cpu_list(plan.worker_cpus));
  return lists;
}

std::string error_of(const Machine& machine, const Request& request) {
  return message_of([&] { make_plan(machine, request); });
}

// gpus.xml: two packages, four NUMA nodes of 12 cores with two threads (core i: CPUs i and i+48). GPU 07 is
// attached to node 1, 46 to node 0, 85 to node 3, c7 to node 2; a console chip to node 0.

TEST(PlanWithGpus, EachTaskRunsNextToItsGpu) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(4);
  request.gpus = find_gpus(machine, "all");
  const auto plans = make_plan(machine, request);
  EXPECT_THAT(cpus(plans), ElementsAre("12-23,60-71", "0-11,48-59", "36-47,84-95", "24-35,72-83"));
  EXPECT_THAT(plans[0].gpus, ElementsAre("0000:07:00.0"));
  EXPECT_THAT(plans[0].numa, ElementsAre(1));
  EXPECT_EQ(plans[0].threads, 24);
  EXPECT_EQ(plans[0].why, "NUMA node 1 with GPU 0000:07:00.0; 12 cores of 48");
}

TEST(NetworkCards, HaveThePlaceOfTheirPciDevice) {
  const Machine machine = data("gpus.xml");
  ASSERT_EQ(machine.network_cards.size(), 1U);
  EXPECT_EQ(machine.network_cards[0].name, "mlx5_0");
  EXPECT_THAT(machine.network_cards[0].domains, ElementsAre(0));
}

TEST(PlanWithGpus, GpusAreAssignedInTheListsOrder) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(2);
  request.gpus = find_gpus(machine, "c7:00.0,0");
  const auto plans = make_plan(machine, request);
  EXPECT_THAT(cpus(plans), ElementsAre("24-35,72-83", "12-23,60-71"));
  EXPECT_THAT(plans[1].gpus, ElementsAre("0000:07:00.0"));
}

TEST(PlanWithGpus, TasksThatShareAGpuShareItsNode) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(4);
  request.gpus = find_gpus(machine, "00000000:46:00.0,0000:85:00.0");
  EXPECT_THAT(cpus(make_plan(machine, request)),
              ElementsAre("0-5,48-53", "6-11,54-59", "36-41,84-89", "42-47,90-95"));
}

TEST(PlanWithGpus, NoCoreIsSplitToBeNearAGpu) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(14);
  request.gpus = find_gpus(machine, "46:00.0");
  const auto plans = make_plan(machine, request);
  int far = 0;
  for (const TaskPlan& plan : plans) {
    if (plan.numa != std::vector<int>{0}) {
      ++far;
      EXPECT_THAT(plan.why,
                  HasSubstr("GPU 0000:46:00.0 is attached to NUMA node 0, which has no core for this task"));
    }
  }
  EXPECT_EQ(far, 2);
}

TEST(PlanWithGpus, AGpuOutsideTheCpusetIsNamed) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(1);
  request.gpus = find_gpus(machine, "85:00.0");
  request.within = parse_cpu_list("0-11");
  const auto plans = make_plan(machine, request);
  EXPECT_THAT(cpus(plans), ElementsAre("0-11"));
  EXPECT_THAT(plans[0].why, HasSubstr("GPU 0000:85:00.0 is attached to NUMA node 3"));
}

TEST(PlanWithGpus, ATaskWhoseGpuIsOutsideTheCpusetRunsInTheGpusPackage) {
  const Machine machine = data("gpus.xml");
  Request request = tasks(1);
  request.gpus = find_gpus(machine, "85:00.0");
  request.within = parse_cpu_list("12-35");
  EXPECT_THAT(cpus(make_plan(machine, request)), ElementsAre("24-35"));
}

TEST(PlanWithGpus, AGpuOfANodeThatTheCgroupHidesIsFound) {
  std::string xml = read_text_file(std::string(LOCKSTEP_TEST_DATA) + "/gpus.xml");
  const std::string all = "allowed_cpuset=\"0xffffffff,0xffffffff,0xffffffff\"";
  ASSERT_NE(xml.find(all), std::string::npos);
  xml.replace(xml.find(all), all.size(), "allowed_cpuset=\"0x00ffffff\"");
  const auto file =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-hidden-{}.xml", ::getpid());
  write_file_atomically(file, xml);
  const Machine machine = load_description(file);
  std::filesystem::remove(file);
  Request request = tasks(1);
  request.gpus = find_gpus(machine, "85:00.0");
  const auto plans = make_plan(machine, request);
  EXPECT_THAT(plans[0].why, HasSubstr("GPU 0000:85:00.0 is attached to NUMA node 3"));
}

TEST(PlanWithGpus, TheConsoleChipIsNotAGpu) {
  const Machine machine = data("gpus.xml");
  EXPECT_EQ(find_gpus(machine, "all").size(), 4U);
  EXPECT_THROW(find_gpus(machine, "02:00.0"), UsageError);
  EXPECT_THROW(find_gpus(machine, "4"), UsageError);
  EXPECT_THROW(find_gpus(machine, "0,07:00.0"), UsageError) << "the same one twice";
}

TEST(PlanOnHybridCores, KindsAreSharedAlsoWhenEachHasItsOwnCache) {
  Machine machine = load_description("l3:2 core:4 pu:1");
  for (std::size_t core = 4; core < 8; ++core) machine.cores[core].kind = 1;
  EXPECT_THAT(cpus(make_plan(machine, tasks(2))), ElementsAre("0-1,4-5", "2-3,6-7"));
}

// restricted.xml: two packages of four cores with two threads (core i: CPUs i and i+8); CPU 3 is offline, the
// cgroup hides CPUs 12-15, node 1 has no memory, node 2 has memory and no CPUs.

TEST(PlanInACgroup, MemoryComesFromANodeWithMemory) {
  const auto plans = make_plan(data("restricted.xml"), tasks(2));
  EXPECT_THAT(plans[0].numa, ElementsAre(0));
  EXPECT_THAT(plans[1].numa, ElementsAre(0));
  EXPECT_THAT(plans[1].why, HasSubstr("NUMA node 1 has no usable memory; the nearest node with memory is 0"));
}

TEST(PlanInACgroup, RequestedCpusThatAreOfflineAreNamed) {
  Request request = tasks(1);
  request.within = parse_cpu_list("2-4");
  const auto plans = make_plan(data("restricted.xml"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("2,4"));
  EXPECT_THAT(plans[0].why, HasSubstr("CPUs 3 are offline or not granted"));
}

TEST(PlanInACgroup, NoUsableCpuIsAnError) {
  Request request = tasks(1);
  request.within = parse_cpu_list("3,12-15");
  EXPECT_EQ(error_of(data("restricted.xml"), request),
            "none of CPUs 3,12-15 can be used: they are offline or not granted to this job");
}

TEST(PlanShares, LocalMemoryIsMoreImportantThanUsingAllCores) {
  const auto plans = make_plan(load_description("package:2 [numa] core:12 pu:1"), tasks(3));
  EXPECT_THAT(cpus(plans), ElementsAre("0-5", "6-11", "12-18"));
  EXPECT_THAT(plans[0].why, HasSubstr("5 cores of this job stay idle"));
}

TEST(PlanShares, PolicyCoreUsesEveryCore) {
  Request request = tasks(3);
  request.policy = Policy::core;
  const auto plans = make_plan(load_description("package:2 [numa] core:12 pu:1"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("0-7", "8-15", "16-23"));
  EXPECT_THAT(plans[1].numa, ElementsAre(0, 1));
}

TEST(PlanShares, FollowTheMachineAndThePolicy) {
  const struct {
    const char* name;
    const char* machine;
    int tasks;
    std::vector<std::string> shares;
    int cpus_per_task = 0;
    Policy policy = Policy::automatic;
  } cases[] = {
      // Cores 0-3 are fast with two threads (CPUs 0-7), cores 4-11 slow with one (CPUs 8-15).
      {"every task gets an equal share of each kind",
       "hybrid.xml",
       4,
       {"0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"}},
      {"few CPUs of each task are fast ones", "hybrid.xml", 2, {"0-1", "4-5"}, 2},
      {"only CPUs that are online and granted", "restricted.xml", 2, {"0-2,8-11", "4-7"}},
      {"a share larger than a node", "package:2 numa:2 core:8 pu:1", 2, {"0-15", "16-31"}},
      {"and not of whole nodes", "package:2 numa:2 core:8 pu:1", 3, {"0-10", "11-21", "22-31"}},
      {"of whole nodes under policy numa",
       "package:2 numa:2 core:8 pu:1",
       3,
       {"0-7", "8-15", "16-23"},
       0,
       Policy::numa},
      {"within caches where that costs no core", "l3:2 core:4 pu:1", 3, {"0-1", "2-3", "4-6"}},
      {"over caches where that costs a core", "l3:3 core:4 pu:1", 2, {"0-5", "6-11"}},
      {"whole caches under policy cache", "l3:3 core:4 pu:1", 2, {"0-3", "4-7"}, 0, Policy::cache},
      {"few tasks spread over packages", "package:2 numa:2 core:8 pu:1", 2, {"0-3", "16-19"}, 4},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    const bool is_file = std::string_view(each.machine).ends_with(".xml");
    Request request = tasks(each.tasks);
    request.cpus_per_task = each.cpus_per_task;
    request.policy = each.policy;
    EXPECT_EQ(cpus(make_plan(is_file ? data(each.machine) : load_description(each.machine), request)),
              each.shares);
  }
}

TEST(PlanShares, MoreTasksThanCoresShareThreadsThenCpus) {
  const Machine machine = load_description("core:2 pu:2");
  EXPECT_THAT(cpus(make_plan(machine, tasks(3))), ElementsAre("0", "1", "2-3"));
  EXPECT_THAT(cpus(make_plan(machine, tasks(6))), ElementsAre("0", "0", "1", "2", "2", "3"));
  EXPECT_THAT(make_plan(machine, tasks(3))[0].why,
              HasSubstr("more tasks than cores: 3 tasks on 2 cores, 2 of them on this core"));
}

TEST(PlanThreads, SmtLimitsComputeAndLeavesSiblingsToWorkers) {
  Request request = tasks(2);
  request.smt = 1;
  request.workers = 1;
  const auto plans = make_plan(load_description("core:4 pu:2"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("0,2", "4,6"));
  EXPECT_THAT(worker_cpus(plans), ElementsAre("3", "7"));
  EXPECT_EQ(plans[0].threads, 2);
}

TEST(PlanThreads, WorkersTakeTheEndOfTheirTasksShare) {
  Request request = tasks(2);
  request.workers = 2;
  const auto plans = make_plan(load_description("package:2 [numa] core:4 pu:1"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("0-1", "4-5"));
  EXPECT_THAT(worker_cpus(plans), ElementsAre("2-3", "6-7"));
}

TEST(PlanThreads, WorkersNeverTakeTheLastComputeCpu) {
  Request request = tasks(2);
  request.workers = 1;
  const auto plans = make_plan(load_description("core:2 pu:1"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("0", "1"));
  EXPECT_THAT(worker_cpus(plans), ElementsAre("0", "1"));
  EXPECT_THAT(plans[0].why, HasSubstr("too few CPUs for 1 worker CPU: loaders share the compute CPUs"));
}

TEST(PlanMemory, InterleaveNamesAllNodesAndOffNone) {
  Request request = tasks(2);
  request.memory = Memory::interleave;
  EXPECT_THAT(make_plan(load_description("package:2 [numa] core:4 pu:1"), request)[0].numa,
              ElementsAre(0, 1));
  request.memory = Memory::off;
  EXPECT_THAT(make_plan(load_description("package:2 [numa] core:4 pu:1"), request)[0].numa, IsEmpty());
}

TEST(PlanOff, LeavesEveryCpuToEveryTask) {
  Request request = tasks(2);
  request.policy = Policy::off;
  request.within = parse_cpu_list("0-3,6");
  const auto plans = make_plan(load_description("core:8 pu:1"), request);
  EXPECT_THAT(cpus(plans), ElementsAre("0-3,6", "0-3,6"));
  EXPECT_EQ(plans[0].threads, 2);
}

TEST(PlanRefuses, InvalidRequests) {
  const Machine machine = load_description("core:4 pu:1");
  EXPECT_THAT(error_of(machine, tasks(0)), HasSubstr("0 tasks"));
  Request request = tasks(1);
  request.within = parse_cpu_list("2-5");
  EXPECT_EQ(error_of(machine, request), "CPUs 4-5 are not in topology 'core:4 pu:1', which has CPUs 0-3");
  request = tasks(1);
  request.workers = -1;
  EXPECT_THAT(error_of(machine, request), HasSubstr("negative"));
  EXPECT_THROW(parse_policy("sideways"), UsageError);
  EXPECT_THROW(load_description("no-such.xml"), UsageError);
}

TEST(PlanRefuses, AFileThatIsNotATopology) {
  const std::string file = std::string(LOCKSTEP_TEST_DATA) + "/README.md";
  EXPECT_THAT([&] { load_description(file); }, testing::ThrowsMessage<Error>(HasSubstr(file)));
}

TEST(PlanPlain, HasSevenFieldsAndADashForNothing) {
  EXPECT_EQ(to_plain(make_plan(load_description("package:2 [numa] core:2 pu:1"), tasks(2))),
            "0 0-1 - 0 2 - {0},{1}\n1 2-3 - 1 2 - {2},{3}\n");
}

TEST(PlanPlain, OpenMpPlacesAreTheCoresOfTheComputeCpus) {
  Request request = tasks(1);
  request.workers = 1;
  EXPECT_EQ(make_plan(load_description("core:2 pu:2"), request)[0].places, "{0,1},{2}");
  request.policy = Policy::off;
  EXPECT_EQ(make_plan(load_description("core:2 pu:2"), request)[0].places, "");
}

}  // namespace
}  // namespace lockstep::affinity
