// What lockstep-doctor reads from files: plugstack.conf, mounts, and the versions of libraries. tests/cluster/doctor_test.sh
// makes the faults on a cluster.

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>  // NOLINT(modernize-deprecated-headers): kill
#include <stdlib.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/environment.h"
#include "common/files.h"
#include "common/leaf/cpu_list.h"
#include "common/process.h"
#include "plugin/doctor/checks.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::doctor {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class DoctorFiles : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    const auto path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << content;
    return path;
  }

  lockstep::testing::TemporaryFolder temporary_;
  std::filesystem::path folder_ = temporary_.path();
};

// The findings on simulated GPUs, as "LEVEL ID WHAT".
class Gpus : public DoctorFiles {
 protected:
  ~Gpus() override { ::unsetenv("SIMULATED_NVML"); }

  std::vector<std::string> findings(const std::string& values, const std::string& device = "/nowhere") const {
    ::setenv("SIMULATED_NVML", write("nvml", values).c_str(), 1);
    Report report;
    report.versions["LibTorch"] = "2.8.0";
    report.versions["NCCL"] = "2.27";
    check_gpus(report, device);
    std::vector<std::string> texts;
    for (const Finding& one : report.findings()) {
      const char* const level = one.level == Level::ok      ? "ok"
                                : one.level == Level::error ? "error"
                                                            : "warning";
      texts.push_back(fmt::format("{} {} {}", level, one.id, one.what));
      EXPECT_EQ(one.level == Level::ok, one.remedy.empty()) << one.id;
    }
    return texts;
  }
};

using Exporter = DoctorFiles;
using PluginLines = DoctorFiles;
using Steps = DoctorFiles;
using Versions = DoctorFiles;

TEST_F(PluginLines, AreFoundInIncludedFilesAndNotInComments) {
  write("plugstack.conf.d/a.conf", "# optional /old/lockstep.so\nrequired /usr/lib/other.so\n");
  write("plugstack.conf.d/b.conf", "Optional /opt/lib/lockstep.so  conf=/etc/site.conf # ours\n");
  const auto line = find_plugin_line(write("plugstack.conf", "include plugstack.conf.d/*.conf\n"));
  ASSERT_TRUE(line);
  EXPECT_EQ(line->plugin, "/opt/lib/lockstep.so");
  EXPECT_EQ(line->config, "/etc/site.conf");
  EXPECT_EQ(line->file, folder_ / "plugstack.conf.d/b.conf");
}

TEST_F(PluginLines, ThatNameAMissingConfigurationAreNamed) {
  const auto plugstack =
      write("plugstack.conf", "# ours\noptional /lib/lockstep.so conf=/etc/lockstep/lokstep.conf\n");
  Report report;
  EXPECT_FALSE(read_configuration("", find_plugin_line(plugstack), report));
  const Finding& finding = report.findings().at(0);
  EXPECT_THAT(finding.what, HasSubstr(plugstack.string() + ":2"));
  EXPECT_THAT(finding.remedy, HasSubstr("correct conf= in " + plugstack.string() + ":2"));
}

TEST_F(PluginLines, InAFileThatNothingIncludesAreAnError) {
  ::setenv("SLURM_CONF", write("slurm.conf", "").c_str(), 1);
  const auto plugstack = write("plugstack.conf", "# nothing\n");
  const auto finding = [] {
    Report report;
    check_plugin(std::nullopt, "", report);
    return report.findings().at(0);
  };
  EXPECT_EQ(finding().level, Level::warning);
  write("plugstack.conf.d/lockstep.conf", "optional /lib/lockstep.so\n");
  EXPECT_EQ(finding().level, Level::error);
  EXPECT_EQ(finding().remedy,
            "echo 'include " + folder_.string() + "/plugstack.conf.d/*.conf' >>" + plugstack.string());
  ::unsetenv("SLURM_CONF");
}

TEST_F(PluginLines, AMissingOneAndACircleOfIncludesEnd) {
  EXPECT_FALSE(find_plugin_line(folder_ / "missing"));
  EXPECT_FALSE(find_plugin_line(write("plugstack.conf", "include plugstack.conf\n")));
}

TEST_F(PluginLines, SlurmConfNamesThePlugstack) {
  ::setenv("SLURM_CONF", write("slurm.conf", "ClusterName=c\n").c_str(), 1);
  EXPECT_EQ(plugstack_file(), folder_ / "plugstack.conf");
  write("slurm.conf", "ClusterName=c\nplugstackconfig=/site/plugstack.conf # here\n");
  EXPECT_EQ(plugstack_file(), "/site/plugstack.conf");
  ::unsetenv("SLURM_CONF");
}

TEST(Disks, AreJudgedByTheKernelsName) {
  for (const char* const type : {"ext4", "xfs", "btrfs", "zfs", "overlay"})
    EXPECT_EQ(disk_of(type), Disk::local);
  for (const char* const type :
       {"nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "fuse.ceph", "fuse.sshfs"}) {
    EXPECT_EQ(disk_of(type), Disk::network) << type;
  }
  EXPECT_EQ(disk_of("tmpfs"), Disk::memory);
  EXPECT_EQ(disk_of("fuse.mergerfs"), Disk::unsure);
  EXPECT_EQ(file_system_type("/proc/self"), "proc");
}

TEST_F(DoctorFiles, OfSharedMemoryAreMountedInFstab) {
  std::filesystem::permissions(folder_, std::filesystem::perms::owner_all);
  Report report;
  check_shared_memory(folder_, report);
  EXPECT_THAT(report.findings().at(0).remedy,
              HasSubstr("/etc/fstab: tmpfs " + folder_.string() + " tmpfs mode=1777 0 0"));
}

TEST_F(Versions, OfLibTorchComeFromItsNameOrTheFilesBesideIt) {
  const auto distribution = write("lib/libtorch_cpu.so.1.13", "");
  std::filesystem::create_symlink(distribution, folder_ / "lib/libtorch_cpu.so");
  EXPECT_EQ(torch_version(folder_ / "lib/libtorch_cpu.so"), "1.13");
  write("wheel/version.py", "from typing import Optional\n__version__ = '2.4.1+cpu'\ndebug = False\n");
  EXPECT_EQ(torch_version(write("wheel/lib/libtorch_cpu.so", "")), "2.4.1+cpu");
  write("archive/build-version", "2.3.0+cu121\n");
  EXPECT_EQ(torch_version(write("archive/lib/libtorch_cpu.so", "")), "2.3.0+cu121");
  EXPECT_EQ(torch_version(write("own/lib/libtorch_cpu.so", "")), "");
}

TEST_F(Versions, OfNcclComeFromItsNameOrItsContent) {
  EXPECT_EQ(nccl_version(write("libnccl.so.2.18.5", "")), "2.18.5");
  const std::string content("ELF\0Mismatched NCCL version detected\0NCCL version 2.20.5+cuda12.4\n\0", 70);
  EXPECT_EQ(nccl_version(write("libnccl.so.2", content)), "2.20.5");
  EXPECT_EQ(nccl_version(write("other/libnccl.so.2", "no number")), "");
}

TEST_F(Gpus, InOrderHaveNoFindingButOk) {
  EXPECT_THAT(findings("gpus 2"),
              testing::ElementsAre(
                  "ok gpu 2 GPUs (simulated device, up to 1980 MHz), driver 550.54.15 for CUDA up to 12.4",
                  "ok gpu-persistence persistence mode is on", "ok gpu-mig MIG mode is off",
                  "ok gpu-clocks clocks are not lowered", "ok gpu-ecc no uncorrected errors of memory",
                  "ok gpu-p2p all GPUs can read each other's memory"));
}

TEST_F(Gpus, ThatCannotReadEachOthersMemoryAreNamedByPairs) {
  EXPECT_THAT(findings("gpus 4 0.p2p_3 3 2.p2p_1 3"),
              testing::Contains("warning gpu-p2p GPUs 0 and 3, 1 and 2 cannot read each other's memory"));
  EXPECT_THAT(findings("p2p_0 3 p2p_1 3"),
              testing::Contains(HasSubstr("GPUs 0 and 1, 0 and 2, 0 and 3, 0 and 4 and 9 more pairs")));
}

// Two sockets with a GPU each.
TEST_F(Gpus, WithoutANetworkCardAtTheirSocketAreNamed) {
  affinity::Machine machine;
  machine.domains = {{.node = 0, .memory_node = 0, .package = 0},
                     {.node = 1, .memory_node = 1, .package = 1}};
  machine.gpus = {{"0000:07:00.0", {0}}, {"0000:85:00.0", {1}}};
  const auto finding = [&](std::vector<affinity::NetworkCard> cards) {
    machine.network_cards = std::move(cards);
    Report report;
    check_gpu_network(machine, report);
    return report.findings().empty() ? Finding{} : report.findings().front();
  };
  EXPECT_EQ(finding({{"mlx5_0", {0}}, {"mlx5_1", {1}}}).level, Level::ok);
  const Finding both_far = finding({{"mlx5_0", {0}}, {"mlx5_1", {0}}});
  EXPECT_EQ(both_far.level, Level::warning);
  EXPECT_EQ(both_far.what,
            "GPU 0000:85:00.0: no network card at the same socket (the node has mlx5_0, mlx5_1)");
  EXPECT_EQ(finding({{"mlx5_0", {0}}}).level, Level::ok) << "a single card has one socket";
  EXPECT_EQ(finding({}).id, "");
}

TEST_F(Gpus, WithFaultsAreNamedByNumber) {
  EXPECT_THAT(
      findings("persistence 0 1.mig 1 2.throttle_reasons 0x40 3.ecc_uncorrected 1 4.ecc_uncorrected 2"),
      testing::ElementsAre(
          HasSubstr("8 GPUs"), "warning gpu-persistence GPU 0, 1, 2, 3, 4, 5, 6, 7: persistence mode is off",
          "warning gpu-mig GPU 1: MIG mode is on",
          "warning gpu-clocks GPU 2: heat or the power supply lower the clocks",
          "error gpu-ecc GPU 3, 4: errors of memory that ECC could not correct", HasSubstr("ok gpu-p2p")));
}

// A power limit, and a game card that reports no values, are not faults.
TEST_F(Gpus, ThatTellLittleHaveNoFindingButOk) {
  EXPECT_THAT(findings("throttle_reasons 0x4 persistence none mig none ecc_uncorrected none"),
              testing::Each(testing::StartsWith("ok ")));
}

TEST_F(Gpus, ThatTheNodeDoesNotHaveAreOneLine) {
  EXPECT_THAT(findings("gpus 0"), testing::ElementsAre("ok gpu this node has no NVIDIA GPU"));
  EXPECT_THAT(findings("init 9"), testing::ElementsAre("ok gpu this node has no NVIDIA GPU"));
}

TEST_F(Gpus, WhoseDriverDoesNotWorkAreNamed) {
  EXPECT_THAT(findings("init 18"),
              testing::ElementsAre(HasSubstr("error gpu libnvidia-ml.so.1 does not start: Driver/library")));
  EXPECT_THAT(findings("init 9", "/dev/null"),
              testing::ElementsAre(HasSubstr("warning gpu the node has NVIDIA's driver")));
}

TEST_F(Gpus, WithALibTorchForCpusAreNamed) {
  ::setenv("SIMULATED_NVML", write("nvml", "gpus 1").c_str(), 1);
  Report report;
  report.versions["LibTorch"] = "1.13";
  check_gpus(report);
  EXPECT_EQ(report.findings().back().id, "nccl");
  EXPECT_EQ(report.findings().back().level, Level::warning);
}

TEST_F(Exporter, IsNotMissedByAUserWhoMayNotOpenTheRecords) {
  namespace fs = std::filesystem;
  Config config;
  config.group = "root";  // exists
  config.records = folder_ / "records";
  fs::create_directory(config.records);
  ::setenv("SLURM_CONF", "/nonexistent", 1);  // Slurm does not say whether this machine is a node
  const auto level = [&] {
    Report report;
    check_exporter(config, report);
    return report.findings().at(0).level;
  };
  EXPECT_EQ(level(), Level::warning);
  fs::permissions(config.records, fs::perms::none);
  const bool root = ::geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  ASSERT_TRUE(!root || ::seteuid(kNobody) == 0);
  const Level hidden = level();
  ASSERT_TRUE(!root || ::seteuid(0) == 0);
  fs::permissions(config.records, fs::perms::owner_all);
  ::unsetenv("SLURM_CONF");
  EXPECT_EQ(hidden, Level::ok);
}

TEST_F(Exporter, IsNotHealthyWhileItsProcessIsStopped) {
  Config config;
  config.group = "root";  // exists
  config.records = folder_;
  std::array<int, 2> ready{};
  ASSERT_EQ(::pipe(ready.data()), 0);
  const pid_t exporter = ::fork();
  if (exporter == 0) {
    const UniqueFd folder(::open(config.records.c_str(), O_RDONLY | O_DIRECTORY));
    if (::flock(folder.get(), LOCK_SH) != 0 || ::write(ready[1], "1", 1) != 1) ::_exit(1);
    for (;;) ::pause();
  }
  char byte = 0;
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  const auto finding = [&] {
    Report report;
    check_exporter(config, report);
    return report.findings().at(0);
  };
  EXPECT_EQ(finding().level, Level::ok);
  int status = 0;
  ::kill(exporter, SIGSTOP);
  ::waitpid(exporter, &status, WUNTRACED);
  EXPECT_EQ(finding().level, Level::warning);
  EXPECT_THAT(finding().what, HasSubstr("is stopped"));
  ::kill(exporter, SIGKILL);
  ::waitpid(exporter, &status, 0);
  for (const int end : ready) ::close(end);
}

TEST_F(Exporter, IsLookedForInPrometheusByNameAndByEachAddress) {
  const std::string query = folder_ / "query";
  const std::string answer = R"({"data":{"result":[{"value":[0,"1"]}]}})";
  std::filesystem::permissions(
      write("curl", "#!/bin/sh\necho \"$*\" >" + query + "\necho '" + answer + "'\n"),
      std::filesystem::perms::owner_all);
  const std::string path = environment::get_or("PATH", "");
  ::setenv("PATH", (folder_.string() + ":" + path).c_str(), 1);
  Report report;
  check_prometheus("http://head:9090", "n1", report);
  ::setenv("PATH", path.c_str(), 1);
  EXPECT_EQ(report.findings().at(0).level, Level::ok) << report.findings().at(0).what;
  const std::string asked = read_text_file(query);
  EXPECT_THAT(asked, HasSubstr("n1"));
  std::istringstream addresses(run_process({"hostname", "-I"}).output);
  for (std::string address; addresses >> address;) EXPECT_THAT(asked, HasSubstr(address));
}

// The findings of a task that may use one CPU, as "LEVEL ID".
std::vector<std::string> findings_with(const std::vector<std::string>& variables) {
  std::vector<std::string> command{"env"};
  command.insert(command.end(), variables.begin(), variables.end());
  const std::string cpu = std::to_string(cpus_of_this_thread().front());
  command.insert(command.end(), {"taskset", "--cpu-list", cpu, LOCKSTEP_DOCTOR, "--json"});
  const auto report = nlohmann::json::parse(run_process(command).output);
  std::vector<std::string> found;
  for (const auto& finding : report.at("findings")) {
    EXPECT_EQ(finding.size(), 5U);
    EXPECT_EQ(finding.at("level") == "ok", finding.at("why") == "" && finding.at("do") == "") << finding;
    found.push_back(finding.at("level").get<std::string>() + " " + finding.at("id").get<std::string>());
  }
  return found;
}

TEST(Tasks, OnOneCoreOfALargeJobAreNamed) {
  const std::vector<std::string> srun{"SLURM_LOCALID=0", "SLURM_STEP_TASKS_PER_NODE=2", "SLURM_JOB_ID=1"};
  auto large = srun;
  large.emplace_back("SLURM_JOB_CPUS_PER_NODE=64(x2)");
  EXPECT_THAT(findings_with(large), Contains("warning binding"));
  auto small = srun;
  small.emplace_back("SLURM_JOB_CPUS_PER_NODE=2(x2)");
  EXPECT_THAT(findings_with(small), Contains("ok binding"));
}

TEST(Tasks, WithMoreThreadsThanCpusAreNamed) {
  const std::vector<std::string> mpirun{"OMPI_COMM_WORLD_LOCAL_RANK=0", "OMPI_COMM_WORLD_LOCAL_SIZE=1"};
  auto two = mpirun;
  two.emplace_back("OMP_NUM_THREADS=2,1");
  EXPECT_THAT(findings_with(two), Contains("error threads"));
  auto one = mpirun;
  one.emplace_back("OMP_NUM_THREADS=1");
  EXPECT_THAT(findings_with(one), Contains("ok threads"));
}

TEST(Tasks, OtherThanTheFirstOneOfANodeSayNothing) {
  const ProcessResult result =
      run_process({"env", "OMPI_COMM_WORLD_LOCAL_RANK=1", "OMPI_COMM_WORLD_LOCAL_SIZE=2", LOCKSTEP_DOCTOR});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.output + result.error, "");
}

TEST_F(Steps, WithoutPmixAreAnErrorOnlyIfSlurmLacksIt) {
  const auto with = [&](const std::string& list, const std::string& variable) {
    const auto srun = write("srun", "#!/bin/sh\necho " + list + "\n");
    std::filesystem::permissions(srun, std::filesystem::perms::owner_all);
    return findings_with({"PATH=" + folder_.string() + ":" + environment::get_or("PATH", ""),
                          "SLURM_STEP_TASKS_PER_NODE=1", variable});
  };
  EXPECT_THAT(with("none pmix", "NO=1"), Contains("warning pmix"));
  EXPECT_THAT(with("none pmix", "PMI_RANK=0"), Contains("ok pmix"));
  EXPECT_THAT(with("none", "NO=1"), Contains("error pmix"));
  EXPECT_THAT(with("none", "TORCHELASTIC_RUN_ID=1"), Not(Contains(HasSubstr("pmix"))));
}

TEST(Calls, ThatAreWrongEndWithCodeTwo) {
  EXPECT_EQ(run_process({LOCKSTEP_DOCTOR, "--program", ""}).exit_code, 2);
  const ProcessResult unknown = run_process({LOCKSTEP_DOCTOR, "--nodes"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.error, HasSubstr("lockstep-doctor --help"));
}

// The level and the remedy for a source of 10 GiB.
std::pair<Level, std::string> judged(double source, double cache, std::uint64_t ram, bool rotational,
                                     double reads = 200) {
  Report report;
  judge_disks({.source = "/shared/data",
               .cache = "/local/lockstep",
               .source_speed = {.bytes_per_second = source},
               .cache_speed = {.bytes_per_second = cache, .reads_per_second = reads},
               .source_bytes = std::uint64_t{10} << 30,
               .ram = ram,
               .rotational = rotational},
              report);
  EXPECT_EQ(report.findings().size(), 1);
  return {report.findings().at(0).level, report.findings().at(0).remedy};
}

TEST(Disks, AreJudgedByTheirSpeedTheirKindAndTheRamTier) {
  constexpr std::uint64_t kEnough = std::uint64_t{10} << 30;
  EXPECT_EQ(judged(1e9, 2e9, 0, false).first, Level::ok);
  EXPECT_EQ(judged(1e9, 0.95e9, 0, false).first, Level::ok) << "within what two measurements differ";
  using testing::AllOf;
  using testing::Pair;
  EXPECT_THAT(judged(1e9, 0.5e9, 0, false), Pair(Level::warning, HasSubstr("set 'ram'")));
  EXPECT_THAT(judged(1e9, 0.5e9, kEnough - 1, false), Pair(Level::warning, HasSubstr("a part of it")));
  EXPECT_THAT(judged(1e9, 0.5e9, kEnough, false), Pair(Level::warning, HasSubstr("--stage-tier=ram")));
  EXPECT_EQ(judged(1e8, 2e8, kEnough, true, 15000).first, Level::ok) << "as disks of virtual machines";
  EXPECT_THAT(judged(1e8, 2e8, kEnough, true), Pair(Level::warning, HasSubstr("--stage-tier=ram")));
}

TEST_F(DoctorFiles, SourceAndCacheAreMeasured) {
  write("source/shard.tar", std::string(std::size_t{3} << 20, 'x'));
  Config config;
  config.cache = (folder_ / "cache").string();
  std::filesystem::create_directory(config.cache);
  Report report;
  check_disks(folder_ / "source", config, report);
  ASSERT_EQ(report.findings().size(), 1);
  EXPECT_NE(report.findings().at(0).level, Level::error) << report.findings().at(0).what;
  EXPECT_THAT(report.findings().at(0).what,
              testing::ContainsRegex(
                  "\\(3.00 MiB\\) is read with .*/s, [1-9][0-9]* random reads .*cache .* with .*/s, [1-9]"));
  EXPECT_TRUE(std::filesystem::is_empty(config.cache));
}

TEST_F(DoctorFiles, SourceThatCannotBeMeasuredIsNamed) {
  Config config;
  config.cache = folder_.string();
  const auto refused = [&](const std::filesystem::path& source) {
    Report report;
    check_disks(source, config, report);
    EXPECT_TRUE(report.failed());
    return report.findings().at(0).what;
  };
  write("small/1.txt", "few bytes");
  EXPECT_THAT(refused(folder_ / "small"), HasSubstr("too little to measure"));
  EXPECT_THAT(refused(folder_ / "none"), HasSubstr("none"));
  config.cache = "";
  EXPECT_THAT(refused(folder_ / "small"), HasSubstr("'cache' is not set"));
}

}  // namespace
}  // namespace lockstep::doctor
