// Runs `lockstep-stage step` as the plugin does: in the background, with the source as fallback, with leases,
// and on several nodes.

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "common/file_system.h"
#include "common/files.h"
#include "common/process.h"
#include "common/sockets.h"
#include "staging/cache/store.h"
#include "staging/rendezvous/rendezvous.h"
#include "tests/unit/staging/step/stage_step_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(StageStep, APythonJobContinuesToReadWhileLinksBecomeLocalFiles) {
  const fs::path pack = make_big_pack("p");
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.record = at("records"), .bandwidth = 8'000'000}), 0)
      << said();
  EXPECT_TRUE(fs::is_symlink(data("p")) || fs::is_symlink(data("p/shard-000002.tar")))
      << "the step did not start at once";
  const char* const kJob = R"(
import os, sys, time
data, source = sys.argv[1:]
want = {n: open(os.path.join(source, n), 'rb').read() for n in os.listdir(source)}
links = local = 0
end = time.time() + 60
while time.time() < end:
    for name, content in want.items():
        path = os.path.join(data, name)
        if open(path, 'rb').read() != content: sys.exit(path + ' is something else')
        if os.path.islink(data) or os.path.islink(path): links += 1
    left = [n for n in want if os.path.islink(data) or os.path.islink(os.path.join(data, n))]
    if left and len(left) < len(want): local += 1
    if not left: break
else: sys.exit('links are left')
print('mixed' if links and local else 'links: %d, mixed: %d' % (links, local))
)";
  const ProcessResult job = run_process({"python3", "-c", kJob, data("p").string(), pack.string()});
  EXPECT_EQ(job.exit_code, 0) << job.error;
  EXPECT_EQ(job.output, "mixed\n");
  EXPECT_EQ(content_of(data("p")), content_of(pack));
  wait_for_helper();
  EXPECT_EQ(record().at("state"), "done");
  EXPECT_THAT(said(), HasSubstr("n1: staged p"));
  // The job's next step finds the copy, and a step of another job has it at once.
  EXPECT_EQ(step({}, {pack.string()}), 0);
  FileSystem::real().remove_all(folder_ / "cache0/jobs");
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.record = at("records"), .bandwidth = 1'000'000}), 0)
      << said();
  wait_for_helper();
  EXPECT_EQ(record().at("sources").at(0).at("hit"), true);
  EXPECT_EQ(content_of(data("p")), content_of(pack));
  EXPECT_FALSE(fs::is_symlink(data("p")) || fs::is_symlink(data("p/shard-000002.tar")));
}

// Without the change, the folder was exchanged at the end, and a task in it saw the old one lose its files.
TEST_F(StageStep, ATaskInTheFolderSeesAllFilesUntilTheEnd) {
  for (int i = 0; i < 200; ++i) write(fmt::format("plain/{:03}", i), std::string(1000, 'x'));
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {at("plain")}), 0) << said();
  ASSERT_TRUE(wait_for([&] { return !fs::is_symlink(data("plain")); }));
  const UniqueFd task = open_file(data("plain"), O_RDONLY | O_DIRECTORY);
  int status = 0;
  EXPECT_GT(::wait(&status), 0);
  for (int i = 0; i < 200; ++i) {
    struct stat file {};
    ASSERT_EQ(::fstatat(task.get(), fmt::format("{:03}", i).c_str(), &file, AT_SYMLINK_NOFOLLOW), 0) << i;
    EXPECT_TRUE(S_ISREG(file.st_mode)) << i << " is not the local file";
  }
}

TEST_F(StageStep, AChangedSourceIsStagedAgainForTheNextStep) {
  const fs::path pack = make_large_pack("p", 30);
  write("plain/a", "first");
  const std::vector<std::string> sources{pack.string(), at("plain")};
  ASSERT_EQ(step({}, sources), 0) << said();
  ASSERT_EQ(step({}, sources), 0) << said();
  EXPECT_EQ(lines(said()), 1) << "the second step found all: " << said();
  for (const bool in_block : {true, false}) {
    SCOPED_TRACE(in_block);
    fs::remove_all(pack);
    fs::remove_all(folder_ / "p.src");
    make_large_pack("p", in_block ? 31 : 32);
    const std::string content = in_block ? "second" : "third";
    write("plain/a", content);
    Tasks tasks;
    ASSERT_EQ(in_block ? step({}, sources) : step_in_background(tasks, sources), 0) << said();
    EXPECT_EQ(content_of(data("p/")), content_of(pack)) << "before the copy is complete, the source";
    EXPECT_EQ(read(data("plain/a")), content);
    int status = 0;
    if (!in_block) {
      EXPECT_GT(::wait(&status), 0);
    }
    EXPECT_FALSE(fs::is_symlink(data("plain/a")));
    EXPECT_EQ(content_of(data("p")), content_of(pack));
    EXPECT_EQ(content_of(data("plain")), content_of(folder_ / "plain"));
  }
  EXPECT_THAT(said(), HasSubstr("n1: " + pack.string() + " changed after an earlier step"));
}

TEST_F(StageStep, AChangedSourceIsStagedAgainOnAllNodes) {
  const fs::path pack = make_large_pack("p", 30);
  write("plain/a", "first");
  const std::vector<std::string> sources{pack.string(), at("plain")};
  const auto on_both_nodes = [&] {
    StepSrun srun;
    expect_ends(start_nodes(2, {}, sources), 0);
    EXPECT_THAT(srun.end(), IsEmpty());
  };
  on_both_nodes();
  write("plain/a", "second");
  ASSERT_EQ(step({}, sources, 0), 0) << said(0);  // node 1 keeps the first version
  EXPECT_EQ(read(data("plain/a", 1)), "first");
  on_both_nodes();
  for (const int node : {0, 1}) EXPECT_EQ(read(data("plain/a", node)), "second") << node;
  write("plain/a", "third");
  on_both_nodes();
  for (const int node : {0, 1}) EXPECT_EQ(read(data("plain/a", node)), "third") << node;
}

TEST_F(StageStep, ARemovedSourceDoesNotStopTheNextStep) {
  const fs::path pack = make_large_pack("p", 30);
  ASSERT_EQ(step({}, {pack.string()}), 0) << said();
  const auto before = content_of(pack);
  fs::remove_all(pack);
  ASSERT_EQ(step({}, {pack.string()}), 0) << said();
  EXPECT_EQ(lines(said()), 2) << said();
  EXPECT_THAT(said(), HasSubstr("No such file or directory; the step uses the copy that an earlier step"));
  EXPECT_EQ(content_of(data("p")), before);
}

// An upgrade may leave the plugin and lockstep-stage of different versions. No wait, and one line.
TEST_F(StageStep, ARequestOfAnotherVersionIsOneLine) {
  const nlohmann::json good = on_node(0, {}, {make_large_pack("p", 10).string()});
  nlohmann::json later = good;
  later["colour"] = "red";
  nlohmann::json earlier = good;
  earlier.erase("cooperate");
  nlohmann::json changed = good;
  changed["keep"] = "long";
  const std::string before_json("\0/data/p\0", 9);
  for (const std::string& text :
       {later.dump(), earlier.dump(), changed.dump(), before_json, std::string("[]"), std::string()}) {
    SCOPED_TRACE(text);
    write("error.0", "");
    EXPECT_EQ(end_of(start_with_input(text)), 1);
    EXPECT_EQ(lines(said()), 1) << said();
    EXPECT_THAT(said(), HasSubstr("are of different versions: check 'helpers' in lockstep.conf ("));
  }
  EXPECT_EQ(end_of(start_with_input(later.dump())), 1);
  EXPECT_THAT(said(), HasSubstr("(unknown key 'colour')"));
  EXPECT_EQ(end_of(start_with_input(good.dump())), 0) << said();
}

TEST_F(StageStep, TheHelperEndsWithTheStepAndTheNextContinuesTheCopy) {
  const fs::path pack = make_big_pack("p");
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.bandwidth = 200'000}), 0);
  tasks.end();
  int ended = 0;
  const auto begin = std::chrono::steady_clock::now();
  for (int status = 0; ::wait(&status) > 0;) ++ended;
  EXPECT_EQ(ended, 1) << "the helper";
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30)) << "the copy lasts 75 s";
  EXPECT_EQ(step({}, {pack.string()}), 0);
  EXPECT_EQ(content_of(data("p")), content_of(pack));
}

// All verbs raise the limit of open files, srun's side too, which has a connection to each node.
TEST_F(StageStep, TheHelperIsNiceMayOpenManyFilesAndHasNoNamesOnItsCommandLine) {
  const fs::path pack = make_big_pack("secret");
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit lower{before.rlim_max / 2, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &lower), 0);
  Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.bandwidth = 1'000'000}), 0) << said();
  ::setrlimit(RLIMIT_NOFILE, &before);
  const pid_t helper = child_of(child_of(::getpid()));
  const fs::path about = fmt::format("/proc/{}", helper);
  EXPECT_EQ(read(about / "cmdline"), std::string(LOCKSTEP_STAGE) + std::string("\0step\0", 6));
  EXPECT_THAT(read(about / "limits"),
              testing::ContainsRegex(fmt::format("Max open files +{} ", before.rlim_max)));
  EXPECT_EQ(::getpriority(PRIO_PROCESS, static_cast<id_t>(helper)), 10);
  tasks.end();
  int status = 0;
  EXPECT_GT(::wait(&status), 0);
}

TEST_F(StageStep, TheHelperEndsWithItsCallerUntilTheStepMayStart) {
  const fs::path pack = make_big_pack("p");
  int port = 0;
  const UniqueFd silent = listen_on(0, 0, port);  // srun, which does not answer
  const SrunAddress address(port);
  Tasks tasks;
  const pid_t pid = start(in_background(tasks, {.nodes = 2}), {pack.string()});
  const UniqueFd connected(::accept(silent.get(), nullptr, nullptr));  // the helper is there
  ::kill(pid, SIGTERM);
  EXPECT_EQ(end_of(pid), 128 + SIGTERM);
  int status = 0;
  EXPECT_GT(::wait(&status), 0);
}

TEST_F(StageStep, AFailureInTheBackgroundIsOneLineAndTheLinksStay) {
  const fs::path pack = make_big_pack("p");
  staging_test::flip_byte(pack / "shard-000001.tar", 3'000'000);
  const Tasks tasks;
  ASSERT_EQ(step_in_background(tasks, {pack.string()}, {.record = at("records")}), 0);
  int status = 0;
  EXPECT_GT(::wait(&status), 0);
  EXPECT_EQ(lines(said()), 1) << said();
  EXPECT_THAT(said(), HasSubstr("n1: "));
  EXPECT_THAT(said(), HasSubstr("shard-000001.tar"));
  EXPECT_EQ(content_of(data("p")), content_of(pack)) << "the job continues to read";
  EXPECT_EQ(fs::canonical(data("p/shard-000001.tar")), fs::canonical(pack / "shard-000001.tar"));
  EXPECT_EQ(record().at("state"), "source");
}

TEST_F(StageStep, ReadsFromTheSourceIfStagingFailsAndThatIsAllowed) {
  const fs::path pack = make_big_pack("p");
  write("plain/sub/a", "x");
  StepRequest small{.record = at("records"), .quota = 1000};
  EXPECT_EQ(step(small, {pack.string()}), 1);
  EXPECT_EQ(lines(said()), 1) << said();
  EXPECT_THAT(said(), HasSubstr("needs"));
  EXPECT_EQ(record().at("state"), "failed");
  small.on_error = OnError::source;
  EXPECT_EQ(step(small, {pack.string(), at("plain")}), 0);
  EXPECT_EQ(lines(said()), 2) << said();
  EXPECT_THAT(said(), HasSubstr("reads from the source"));
  EXPECT_EQ(fs::read_symlink(data("p")), pack);
  EXPECT_EQ(content_of(data("plain/")), content_of(folder_ / "plain"));
  EXPECT_EQ(record().at("state"), "source");
  // The next step, without the quota, has a copy on the node.
  EXPECT_EQ(step({}, {pack.string(), at("plain")}), 0) << said();
  EXPECT_FALSE(fs::is_symlink(data("p")));
  EXPECT_EQ(content_of(data("p")), content_of(pack));
}

TEST_F(StageStep, LeasesWhatItStages) {
  const fs::path pack = make_large_pack("p", 30);
  UniqueFd lock = lease("7.0");
  ASSERT_EQ(step({.lease = lease_file("7.0")}, {pack.string()}), 0) << said();
  cache::Store store(folder_ / "cache0");
  const std::string object = store.list().at(0).name;
  EXPECT_TRUE(store.leased(object));
  lock.reset();
  EXPECT_FALSE(store.leased(object));
  // A later step of the job, which has nothing to stage, uses it too.
  lock = lease("7.1");
  ASSERT_EQ(step({.lease = lease_file("7.1")}, {pack.string()}), 0) << said();
  EXPECT_TRUE(store.leased(object));
}

TEST_F(StageStep, NodesOfAStepReadTheSourceOnceUnlessTheyMayNotCooperate) {
  const fs::path pack = make_big_pack("p");
  const Tasks tasks;
  for (const StepRequest& request : {StepRequest(), in_background(tasks), StepRequest{.cooperate = false}}) {
    const bool background = request.mode == StepMode::background;
    SCOPED_TRACE(fmt::format("background {}, cooperate {}", background, request.cooperate));
    for (int node = 0; node < 3; ++node)
      FileSystem::real().remove_all(folder_ / fmt::format("cache{}", node));
    StepSrun srun;
    std::vector<std::string> records;
    for (int node = 0; node < 3; ++node)
      fs::create_directories(records.emplace_back(at(fmt::format("records{}", node))));
    expect_ends(start_nodes(3, request, {pack.string()}, records), 0);
    if (background) {
      for (int node = 0; node < 3; ++node) EXPECT_GT(::wait(nullptr), 0);
    }
    EXPECT_THAT(srun.end(), IsEmpty());
    std::uint64_t from_source = 0;
    for (int node = 0; node < 3; ++node) {
      EXPECT_EQ(content_of(data("p", node)), content_of(pack));
      EXPECT_FALSE(fs::is_symlink(data("p/shard-000000.tar", node)));
      const auto about =
          nlohmann::json::parse(read_text_file(at(fmt::format("records{}/staging.json", node))));
      EXPECT_EQ(about.at("state"), "done");
      from_source += about.at("sources").at(0).at("from_source").get<std::uint64_t>();
    }
    EXPECT_EQ(from_source, size_of(pack) * (request.cooperate ? 1U : 3U));
  }
}

// While nodes are upgraded one after the other.
TEST_F(StageStep, NodesOfOtherReleasesStageAlone) {
  const fs::path pack = make_large_pack("p", 30);
  StepSrun srun;
  const pid_t here = start({.nodes = 2}, {pack.string()});
  Hello hello;
  hello.job = 7;
  hello.step = "0";
  hello.node = "n2";
  hello.node_id = 1;
  hello.nodes = 2;
  Rendezvous earlier({SrunAddress::port(), {"127.0.0.1"}, kKey}, hello, [](const std::string&) {});
  earlier.gather("places", {{"name", "n2"}, {"release", "0.0.9"}});
  EXPECT_TRUE(earlier.agree({}).good);
  EXPECT_EQ(end_of(here), 0) << said();
  EXPECT_THAT(srun.end(), IsEmpty());
  EXPECT_THAT(said(), HasSubstr("different releases of Lockstep ("));
  EXPECT_THAT(said(), HasSubstr("0.0.9 on n2"));
  EXPECT_THAT(said(), HasSubstr(": each of them reads all data from the source"));
  EXPECT_EQ(content_of(data("p")), content_of(pack));
}

TEST_F(StageStep, AnUnreachableSrunIsOneLine) {
  const fs::path pack = make_big_pack("p");
  int port = 0;
  { const UniqueFd closed = listen_on(0, 0, port); }
  const SrunAddress address(port);
  expect_ends(start_nodes(2, {}, {pack.string()}), 1);
  EXPECT_EQ(lines(said(0)) + lines(said(1)), 1) << said(0) << said(1);
}

}  // namespace
}  // namespace lockstep::transfer
