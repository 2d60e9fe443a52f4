// Runs `lockstep-stage step` while something goes wrong around it: srun ends, sources change, the shared
// store cannot be leased or loses its copy.

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "common/file_system.h"
#include "common/process.h"
#include "common/sockets.h"
#include "staging/cache/shared.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/step/stage_step_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class StageStepFaults : public StageStep {
 protected:
  /// The folder of the only copy under way on a node, or "".
  fs::path incoming(int node = 0) const {
    const fs::path objects = folder_ / fmt::format("cache{}/objects", node);
    if (!fs::exists(objects)) return {};
    for (const fs::directory_entry& entry : fs::directory_iterator(objects)) {
      if (entry.path().filename().string().starts_with(".incoming-")) return entry.path() / "files";
    }
    return {};
  }
  bool copies(const std::string& file, int node = 0) const {
    const fs::path folder = incoming(node);
    return !folder.empty() && fs::exists(folder / file);
  }
  /// Makes an admin's store with a copy of the source; returns the object's name.
  std::string prefetch(const fs::path& shared, const std::string& source) const {
    fs::create_directories(shared);
    const ProcessResult put =
        run_process({LOCKSTEP_STAGE, "put", source, "--cache", shared.string(), "--json"});
    if (put.exit_code != 0) fail("{}", put.error);
    std::string object = nlohmann::json::parse(put.output).at("object");
    cache::share(shared, object, {}, FileSystem::real());
    return object;
  }
  /// The process that stages in the background; `caller` waits for it until the step may start.
  static pid_t helper(pid_t caller = ::getpid()) {
    return staging_test::child_of(staging_test::child_of(caller));
  }
  StepRequest of_step(const std::string& step, const std::string& shared) const {
    return {.shared = shared, .lease = lease_file(step)};
  }
  /// Ends a process's connections to srun's rendezvous, as a network that fails does.
  static void cut_connection(pid_t pid) {
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    int cut = 0;
    for (const fs::directory_entry& entry : fs::directory_iterator(fmt::format("/proc/{}/fd", pid))) {
      const int number = std::atoi(entry.path().filename().c_str());
      const UniqueFd socket(static_cast<int>(::syscall(SYS_pidfd_getfd, process.get(), number, 0)));
      sockaddr_in6 peer{};
      socklen_t length = sizeof peer;  // IPv6 has the port at the same place as IPv4
      if (::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
      if (ntohs(peer.sin6_port) == SrunAddress::port() && ::shutdown(socket.get(), SHUT_RDWR) == 0) ++cut;
    }
    EXPECT_EQ(cut, 1);
  }
  /// Whether the main thread of the process sleeps.
  static bool sleeps(pid_t pid) {
    const std::string status = staging_test::read(fmt::format("/proc/{}/stat", pid));
    return status.find(") S ") != std::string::npos;
  }
  /// Starts two nodes, slowly. Returns when both copy.
  std::vector<pid_t> start_two_that_copy(const fs::path& pack) const {
    std::vector<pid_t> nodes = start_nodes(2, {.on_error = OnError::source, .bandwidth = 2'000'000},
                                           {pack.string()}, {"", at("records")});
    EXPECT_TRUE(wait_for([&] { return copies("index.lockstep", 0) && copies("shard-000000.tar", 1); }));
    return nodes;
  }
};

TEST_F(StageStepFaults, IfAllNodesLoseSrunTheyEndInTheSameWay) {
  const fs::path pack = make_big_pack("p");
  StepSrun srun(std::chrono::milliseconds(1));
  const std::vector<pid_t> nodes = start_two_that_copy(pack);
  srun.end();
  expect_ends(nodes, 1);
  EXPECT_THAT(said(0), HasSubstr("srun's rendezvous"));
  EXPECT_EQ(lines(said(0)) + lines(said(1)), 1) << said(0) << said(1);
}

TEST_F(StageStepFaults, IfTheNodeCannotStageTheStepMayReadFromTheSource) {
  const fs::path pack = make_large_pack("p", 30);
  StepRequest request{.problem = "the cache is read-only", .record = at("records")};
  EXPECT_EQ(step(request, {pack.string()}), 1);
  EXPECT_EQ(said(), "lockstep: n1: the cache is read-only\n");
  EXPECT_EQ(record().at("state"), "failed");
  request.on_error = OnError::source;
  EXPECT_EQ(step(request, {pack.string()}), 0) << said();
  EXPECT_THAT(said(), HasSubstr("n1: the cache is read-only; the job reads from the source\n"));
  EXPECT_EQ(fs::read_symlink(data("p")), pack);
  EXPECT_EQ(record().at("state"), "source");
  // The plugin does not pass sources that it has refused.
  EXPECT_EQ(step(request, {}), 1);
}

TEST_F(StageStepFaults, IfANodeIsLostNoOtherStartsTheStepWithoutIt) {
  const fs::path pack = make_big_pack("p");
  StepSrun srun;
  const std::vector<pid_t> nodes = start_two_that_copy(pack);
  ::kill(nodes[1], SIGKILL);
  EXPECT_EQ(end_of(nodes[1]), 128 + SIGKILL);
  EXPECT_EQ(end_of(nodes[0]), 1) << said();
  EXPECT_EQ(srun.end(), "n2: disconnected while it was staging\n");
}

TEST_F(StageStepFaults, ANodeThatLosesSrunWhileItStagesDoesNotContinueAlone) {
  const fs::path pack = make_big_pack("p");
  StepSrun srun;
  const std::vector<pid_t> nodes = start_two_that_copy(pack);
  cut_connection(staging_test::child_of(nodes[1]));
  expect_ends(nodes, 1);
  EXPECT_EQ(srun.end(), "n2: disconnected while it was staging\n");
  EXPECT_EQ(record().at("state"), "failed");
}

TEST_F(StageStepFaults, ANodeThatLosesSrunOnceItHasItsDataAsksAgain) {
  const fs::path pack = make_big_pack("p");
  ASSERT_EQ(step({}, {pack.string()}, 1), 0);
  StepSrun srun;
  const std::vector<pid_t> nodes =
      start_nodes(2, {.bandwidth = 5'000'000, .cooperate = false}, {pack.string()}, {"", at("records")});
  EXPECT_TRUE(wait_for([&] {
    return copies("shard-000000.tar", 0) && fs::exists(folder_ / "records/staging.json") &&
           sleeps(staging_test::child_of(nodes[1]));
  }));
  cut_connection(staging_test::child_of(nodes[1]));
  expect_ends(nodes, 0);
  EXPECT_THAT(srun.end(), IsEmpty());
}

TEST_F(StageStepFaults, ANodeThatCannotReachSrunDoesNotContinueAlone) {
  const fs::path pack = make_large_pack("p", 30);
  const StepRequest request{.nodes = 2, .node_list = "n[1-2]", .on_error = OnError::source};
  {
    const SrunAddress nobody(1);
    EXPECT_EQ(step(request, {pack.string()}), 1);
  }
  EXPECT_EQ(lines(said()), 1) << said();
  EXPECT_EQ(step(request, {pack.string()}), 0) << "no node has a rendezvous: " << said();
}

TEST_F(StageStepFaults, AHelperThatIsKilledInTheBackgroundIsReportedAndTheLinksLeadToTheSource) {
  const fs::path pack = make_big_pack("p");
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.record = at("records"), .bandwidth = 3'000'000}), 0);
  EXPECT_TRUE(wait_for([&] { return copies("shard-000001.tar"); }));
  ::kill(helper(), SIGKILL);
  int status = 0;
  ASSERT_GT(::wait(&status), 0);
  EXPECT_EQ(said(), "lockstep: n1: staging was ended by signal 9; the job reads from the source\n");
  EXPECT_EQ(record().at("state"), "source");
  for (const auto& [name, content] : content_of(pack))
    EXPECT_EQ(fs::read_symlink(data("p") / name), pack / name) << "tasks may stand in the folder";
}

TEST_F(StageStepFaults, TheSupervisorOfAKilledHelperEndsWithTheStepEvenIfItWaitsForALock) {
  const fs::path pack = make_big_pack("p");
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.bandwidth = 3'000'000}), 0);
  EXPECT_TRUE(wait_for([&] { return copies("shard-000000.tar"); }));
  const UniqueFd lock = open_file(at("cache0/jobs/7/lock"), O_RDWR, 0);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  ::kill(helper(), SIGTERM);
  EXPECT_TRUE(wait_for([&] { return said().find("staging was ended by signal 15") != std::string::npos; }));
  tasks.end();
  EXPECT_TRUE(wait_for([] { return ::waitpid(-1, nullptr, WNOHANG) > 0; }));
}

TEST_F(StageStepFaults, AHelperThatIsKilledBeforeTheStepStartsReportsItsSignalToItsCaller) {
  const fs::path pack = make_large_pack("p", 30);
  int port = 0;
  const UniqueFd silent = listen_on(0, 0, port);  // srun, which does not answer
  const SrunAddress address(port);
  Tasks tasks;
  const pid_t caller = start(in_background(tasks, {.nodes = 2}), {pack.string()});
  const UniqueFd connected(::accept(silent.get(), nullptr, nullptr));  // the helper is there
  ::kill(helper(caller), SIGKILL);
  EXPECT_EQ(end_of(caller), 128 + SIGKILL);
  EXPECT_EQ(said(), "");
  while (::wait(nullptr) > 0) {
  }
}

TEST_F(StageStepFaults, ASharedStoreOnAnotherFileSystemIsNotUsed) {
  std::string name = "/dev/shm/stage_step_test.XXXXXX";
  const fs::path other = ::mkdtemp(name.data());
  struct stat here {
  }, there{};
  ASSERT_TRUE(::stat(folder_.c_str(), &here) == 0 && ::stat(other.c_str(), &there) == 0);
  if (here.st_dev == there.st_dev) {
    fs::remove_all(other);
    GTEST_SKIP() << "temporary files are on /dev/shm themselves";
  }
  const fs::path pack = make_large_pack("p", 30);
  prefetch(other / "shared", pack.string());
  const UniqueFd lock = lease("7.0");
  EXPECT_EQ(step(of_step("7.0", (other / "shared").string()), {pack.string()}), 0) << said();
  EXPECT_FALSE(fs::is_symlink(data("p")));
  EXPECT_EQ(content_of(data("p")), content_of(pack));
  EXPECT_THAT(said(), HasSubstr("the shared copy is not used"));
  FileSystem::real().remove_all(other);
}

TEST_F(StageStepFaults, ASharedStoreIntoWhichOthersMayWriteIsNotUsed) {
  const fs::path pack = make_large_pack("p", 30);
  const fs::path shared = folder_ / "shared";
  prefetch(shared, pack.string());
  ASSERT_EQ(::chmod((shared / "objects").c_str(), 0777), 0);
  const UniqueFd lock = lease("7.0");
  EXPECT_EQ(step(of_step("7.0", shared.string()), {pack.string()}), 0) << said();
  EXPECT_FALSE(fs::is_symlink(data("p")));
  EXPECT_EQ(content_of(data("p")), content_of(pack));
  EXPECT_THAT(said(), HasSubstr("shared/objects is not used: it belongs to user"));
}

TEST_F(StageStepFaults, AStepThatCannotLeaseTheSharedCopyMakesItsOwn) {
  const fs::path pack = make_large_pack("p", 30);
  const std::string object = prefetch(folder_ / "shared", pack.string());
  fs::remove_all(folder_ / "shared/leases" / object);
  const UniqueFd lock = lease("7.0");
  EXPECT_EQ(step(of_step("7.0", at("shared")), {pack.string()}), 0) << said();
  EXPECT_FALSE(fs::is_symlink(data("p")));
  EXPECT_TRUE(cache::Store(folder_ / "cache0").leased(object));
}

TEST_F(StageStepFaults, EveryStepOfAJobLeasesTheSharedCopy) {
  const fs::path pack = make_large_pack("p", 30);
  const std::string object = prefetch(folder_ / "shared", pack.string());
  UniqueFd lock = lease("7.0");
  ASSERT_EQ(step(of_step("7.0", at("shared")), {pack.string()}), 0) << said();
  ASSERT_TRUE(fs::is_symlink(data("p")));
  cache::Store shared(folder_ / "shared");
  EXPECT_TRUE(shared.leased(object));
  lock = lease("7.1");
  EXPECT_FALSE(shared.leased(object)) << "the first step has ended";
  ASSERT_EQ(step(of_step("7.1", at("shared")), {pack.string()}), 0) << said();
  EXPECT_TRUE(shared.leased(object));
  // Between two steps there is no lease. The next step finds the copy removed, and stages it again.
  lock = lease("7.2");
  ASSERT_TRUE(shared.evict(object, std::chrono::seconds(0)));
  ASSERT_EQ(step(of_step("7.2", at("shared")), {pack.string()}), 0) << said();
  EXPECT_FALSE(fs::is_symlink(data("p")));
  EXPECT_EQ(content_of(data("p")), content_of(pack));
}

TEST_F(StageStepFaults, TheSharedCopyIsOnlyForUsersWhoCanOpenTheShards) {
  const fs::path pack = make_big_pack("p");
  prefetch(folder_ / "shared", pack.string());
  fs::remove(pack / "shard-000001.tar");
  EXPECT_EQ(step({.shared = at("shared")}, {pack.string()}), 1);
  EXPECT_THAT(said(), HasSubstr("shard-000001.tar"));
}

TEST_F(StageStepFaults, AFileThatIsRewrittenMeanwhileNeverGetsIntoTheJob) {
  write("plain/a", std::string(500'000, 'a'));
  write("plain/b", std::string(std::size_t{12} << 20U, 'b'));
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {at("plain")}, {.record = at("records"), .bandwidth = 6'000'000}), 0)
      << said();
  ASSERT_TRUE(wait_for([&] { return copies("b"); }));
  staging_test::flip_byte(folder_ / "plain/b", 5);
  fs::last_write_time(folder_ / "plain/b", fs::file_time_type::clock::now());
  wait_for_helper();
  EXPECT_THAT(said(), HasSubstr("changed"));
  EXPECT_EQ(content_of(data("plain/")), content_of(folder_ / "plain"));
  // Files that had been linked before do not count as parts of the same version either.
  EXPECT_TRUE(fs::is_symlink(data("plain")) || fs::is_symlink(data("plain/a")));
  EXPECT_TRUE(fs::is_symlink(data("plain")) || fs::is_symlink(data("plain/b")));
  EXPECT_EQ(record().at("state"), "source");
}

TEST_F(StageStepFaults, NamesAreBytes) {
  const fs::path pack = make_large_pack("m\xC3\xA4nner \xFF\xFE", 30);
  write("plain \xFF/a\x80", "x");
  const std::vector<std::string> sources{pack.string(), at("plain \xFF")};
  for (int i = 0; i < 2; ++i) ASSERT_EQ(step({.record = at("records")}, sources), 0) << said();
  EXPECT_EQ(content_of(data(pack.filename().string())), content_of(pack));
  EXPECT_EQ(content_of(data("plain \xFF")), content_of(at("plain \xFF")));
  EXPECT_EQ(lines(said()), 1) << "the second step finds the copy: " << said();
}

TEST_F(StageStepFaults, ANodeThatHasAnEarlierVersionGetsThatOfTheOthers) {
  const fs::path pack = make_large_pack("p", 30);
  ASSERT_EQ(step({}, {pack.string()}, 0), 0) << said();
  fs::remove_all(pack);
  fs::remove_all(folder_ / "p.src");
  make_large_pack("p", 31);
  StepSrun srun;
  expect_ends(start_nodes(2, {}, {pack.string()}), 0);
  EXPECT_THAT(srun.end(), IsEmpty());
  for (int node = 0; node < 2; ++node) EXPECT_TRUE(content_of(data("p", node)) == content_of(pack)) << node;
  EXPECT_THAT(said(0), HasSubstr("changed after an earlier step of this job staged it"));
}

TEST_F(StageStepFaults, FailuresThatOnlyFollowFromAnotherNodesAreNotReported) {
  const fs::path pack = make_large_pack("p", 30);
  fs::remove(pack / "index.lockstep");
  fs::remove_all(pack);
  fs::create_directory(pack);
  StepSrun srun;
  expect_ends(start_nodes(3, {}, {pack.string()}), 1);
  const std::string line = srun.end();
  EXPECT_THAT(line, HasSubstr("is empty"));
  EXPECT_THAT(line, Not(HasSubstr("has left")));
}

}  // namespace
}  // namespace lockstep::transfer
