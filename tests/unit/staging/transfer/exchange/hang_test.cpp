// System calls of one node do not return: the node is named, and the others continue without it.

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "staging/step/stage_step.h"
#include "tests/unit/staging/step/stage_step_world.h"
#include "tests/unit/staging/transfer/nodes_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

[[noreturn]] void hang() {
  for (;;) ::pause();
}

class ExchangeHang : public NodesTest {
 protected:
  ExchangeHang() { source_patience_ = seconds(2); }
};

using ExchangeHangLanes = WithLanes<ExchangeHang>;
INSTANTIATE_TEST_SUITE_P(Lanes, ExchangeHangLanes, kLanes);

TEST_P(ExchangeHangLanes, NodeWhoseDiskHangsFailsAllAndIsNamed) {
  const fs::path pack = make_large_pack("p", 300);
  source_patience_ = milliseconds(500);
  // fsync has more time, because it may wait for data of other processes.
  const std::map<FileCall::Kind, std::string> patiences{{FileCall::Kind::write, "500 ms"},
                                                        {FileCall::Kind::fsync, "3.00 s"}};
  for (const auto& [stuck_in, patience] : patiences) {
    SCOPED_TRACE(patience);
    staging_test::WatchedFileSystem disk([kind = stuck_in](int n, const FileCall& call) {
      if (n > 20 && call.kind == kind) hang();
      return 0;
    });
    for (const NodeEnd& end : put_on(3, pack, {{1, {.system = &disk}}})) {
      EXPECT_EQ(end.code, 1);
      EXPECT_THAT(end.error,
                  AllOf(HasSubstr(fmt::format("no answer from the local disk of 127.0.0.1 ({}) for {}: ",
                                              cache(1).string(), patience))));
    }
  }
  expect_good(put_on(3, pack), pack);
}

// srun takes no part in this put.
TEST_P(ExchangeHangLanes, FirstNodeThatIsKilledIsNamedByTheOthers) {
  const fs::path pack = make_large_pack("p", 300);
  staging_test::WatchedFileSystem disk([](int n, const FileCall& call) {
    if (n > 20 && call.kind == FileCall::Kind::write) ::raise(SIGKILL);
    return 0;
  });
  const auto ends = put_on(2, pack, {{0, {.system = &disk}}});
  EXPECT_EQ(ends[1].code, 1);
  EXPECT_THAT(ends[1].error, AllOf(HasSubstr("the first node's put (127.0.0.1:"), Not(HasSubstr("srun"))));
}

TEST_F(ExchangeHang, SlowNodeIsNotGivenUp) {
  const fs::path pack = make_large_pack("p", 300);
  source_patience_ = seconds(1);
  SourceReads slow(pack, [](const SourceRead&) { std::this_thread::sleep_for(milliseconds(150)); });
  expect_good(put_on(2, pack, {{0, {.system = &slow}}, {1, {.system = &slow}}}), pack);
}

// A process that is stopped, as in a suspended job, must not look like one whose source hangs.
TEST_F(ExchangeHang, NoTimePassesForAStoppedProcess) {
  source_patience_ = seconds(1);
  peer_timeouts_ = {};  // so that the other node does not give it up meanwhile
  const fs::path pack = make_large_pack("p", 100);
  SourceReads stops(pack, [](const SourceRead& read) {
    if (read.of_shards != 1) return;
    stop_this_node();
    std::this_thread::sleep_for(milliseconds(300));  // the read goes on for a moment
  });
  start(2, pack, {{1, {.system = &stops}}});
  wait_until_stopped(1);
  std::this_thread::sleep_for(milliseconds(1800));
  resume(1);
  expect_good(finish(), pack);
}

/// The read of the second chunk hangs. Only then is the first chunk delivered. A little later, the call that
/// links it into the job's folder hangs, while the process holds that folder's lock.
class HangsWhileItLinks : public SourceReads {
 public:
  explicit HangsWhileItLinks(fs::path folder)
      : SourceReads(std::move(folder), [this](const SourceRead& read) {
          if (read.offset >= ChunkPlan::kChunkBytes / 2) {
            hangs_ = true;
            hang();
          }
          staging_test::wait_for([this] { return hangs_.load(); });
        }) {}

  ssize_t call(const FileCall& call) override {
    if (call.kind == Kind::chmod && hangs_) std::this_thread::sleep_for(milliseconds(500));
    if (call.kind == Kind::link && hangs_) hang();
    return SourceReads::call(call);
  }

 private:
  std::atomic<bool> hangs_ = false;
};

/// The first read of a source hangs.
class ReadHangs : public SourceReads {
 public:
  explicit ReadHangs(fs::path folder)
      : SourceReads(std::move(folder), [](const SourceRead& read) {
          if (read.n == 1) hang();
        }) {}
};

/// Every write to the local disk hangs.
class WriteHangs : public staging_test::WatchedFileSystem {
 public:
  WriteHangs()
      : WatchedFileSystem([](int, const FileCall& call) {
          if (call.kind == Kind::write) hang();
          return 0;
        }) {}
};

/// Steps of three nodes as the plugin starts them. A call of the second one hangs.
class StepHang : public staging_test::StageStep {
 protected:
  static constexpr int kNodes = 3;
  static constexpr int kStuck = 1;

  /// Calls `before` in each node's process. The second node's calls go through `system_`.
  void start_all(const fs::path& pack, StepMode mode, OnError on_error,
                 const std::function<void(int node)>& before = {}) {
    for (int node = 0; node < kNodes; ++node) {
      const StepRequest request{.on_error = on_error, .source_patience = 2, .cooperate = cooperate_};
      StepCall call(on_node_of(node, kNodes,
                               mode == StepMode::background ? in_background(tasks_, request) : request,
                               {pack.string()}));
      nodes_.push_back(start_child([&] {
        redirect_errors(node);
        call.put.sizes.lanes = lanes_;
        if (node == kStuck) call.put.file_system = system_;
        if (before) before(node);
        stage_step(call);
      }));
    }
  }
  std::vector<int> finish() {
    std::vector<int> codes;
    for (const pid_t pid : nodes_) codes.push_back(end_of(pid));
    return codes;
  }
  /// Waits for the processes that go on in the background.
  static void end_background(StepSrun& srun) {
    for (int node = 0; node < kNodes; ++node) ::wait(nullptr);
    srun.end();
  }
  void expect_copy(const fs::path& pack, int node) const {
    EXPECT_FALSE(fs::is_symlink(data("p", node))) << said(node);
    EXPECT_EQ(content_of(data("p/", node)), content_of(pack));
  }
  void expect_others_have(const fs::path& pack) const {
    std::uint64_t from_source = 0;
    for (const int node : {0, 2}) {
      expect_copy(pack, node);
      EXPECT_THAT(said(node), Not(HasSubstr("reads from the source")));
      const auto staged = nlohmann::json::parse(
          staging_test::read(folder_ / fmt::format("cache{}/jobs/7/staged.json", node)));
      from_source += from_source_of(staged);
    }
    // One of the other nodes, not both, reads the share of the stuck node.
    EXPECT_LE(from_source, size_of(pack) + ChunkPlan::kChunkBytes);
    EXPECT_THAT(said(kStuck), AllOf(HasSubstr("no answer from "), HasSubstr("from the source")));
    EXPECT_TRUE(fs::is_symlink(data("p", kStuck)) || fs::is_symlink(data("p/shard-000000.tar", kStuck)));
    EXPECT_EQ(content_of(data("p/", kStuck)), content_of(pack));
  }
  static std::uint64_t from_source_of(const nlohmann::json& value) {
    if (value.is_object() && value.contains("from_source")) return value.at("from_source");
    std::uint64_t sum = 0;
    if (value.is_structured()) {
      for (const nlohmann::json& part : value) sum += from_source_of(part);
    }
    return sum;
  }

  staging_test::Tasks tasks_;
  std::vector<pid_t> nodes_;
  FileSystem* system_ = nullptr;
  bool cooperate_ = true;
  std::size_t lanes_ = 0;
};

using StepHangLanes = WithLanes<StepHang>;
INSTANTIATE_TEST_SUITE_P(Lanes, StepHangLanes, kLanes);

TEST_P(StepHangLanes, NodeWhoseReadHangsReadsFromTheSourceAndTheOthersGoOn) {
  const fs::path pack = make_big_pack("p");
  ReadHangs hangs(pack);
  system_ = &hangs;
  StepSrun srun;
  start_all(pack, StepMode::block, OnError::source);
  EXPECT_THAT(finish(), testing::Each(0));
  EXPECT_THAT(srun.end(), IsEmpty());
  expect_others_have(pack);
}

// The supervisor's signal does not end the process, as if it waited for a broken disk.
TEST_F(StepHang, NodeWhoseProcessCannotBeKilledReadsFromTheSourceToo) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to be another user";
  const fs::path pack = make_big_pack("p");
  fs::permissions(folder_, fs::perms(0755));
  cooperate_ = false;
  constexpr uid_t kUser = 1000;
  SourceReads hangs(pack, [](const SourceRead& read) {
    if (read.n > 1 || ::setresuid(0, 0, 0) != 0) return;
    hang();
  });
  system_ = &hangs;
  StepSrun srun;
  start_all(pack, StepMode::block, OnError::source, [&](int node) {
    if (node != kStuck) return;
    const fs::path cache = at(fmt::format("cache{}", node));
    if (::chown(cache.c_str(), kUser, kUser) != 0 || ::setresuid(kUser, kUser, 0) != 0)
      fail_errno("setresuid");
  });
  EXPECT_THAT(finish(), testing::Each(0));
  EXPECT_THAT(said(kStuck), AllOf(HasSubstr("no answer from "), HasSubstr("reads from the source")));
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), 0) << "the stuck process was killed";
  ::kill(staging_test::child_of(::getpid()), SIGKILL);  // it holds the other end of srun's pipe
  EXPECT_THAT(srun.end(), IsEmpty());
}

TEST_P(StepHangLanes, TheOthersGoOnInTheBackgroundToo) {
  const fs::path pack = make_big_pack("p");
  ReadHangs hangs(pack);
  system_ = &hangs;
  StepSrun srun;
  start_all(pack, StepMode::background, OnError::fail);
  EXPECT_THAT(finish(), testing::Each(0));
  end_background(srun);
  expect_others_have(pack);
}

TEST_P(StepHangLanes, TheNextNodeLooksAtTheSourceForAllIfTheFirstHasLeft) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  const fs::path pack = make_big_pack("p");
  fs::create_directory(folder_ / "nothing");
  StepSrun srun;
  start_all(pack, StepMode::block, OnError::source, [&](int node) {
    if (node != 0) return;
    see_instead(pack, folder_ / "nothing");
  });
  EXPECT_THAT(finish(), testing::Each(0));
  EXPECT_THAT(srun.end(), IsEmpty());
  EXPECT_THAT(said(0), HasSubstr("the job reads from the source"));
  for (const int node : {1, 2}) expect_copy(pack, node);
}

TEST_P(StepHangLanes, IfAFailureEndsTheStepTheLineNamesTheNodeWhoseReadHangs) {
  const fs::path pack = make_big_pack("p");
  ReadHangs hangs(pack);
  system_ = &hangs;
  StepSrun srun;
  start_all(pack, StepMode::block, OnError::fail);
  EXPECT_THAT(finish(), testing::Each(1));
  EXPECT_THAT(srun.end(),
              AllOf(testing::StartsWith("n2: no answer from " + pack.string()), HasSubstr(" for 2.00 s: ")));
}

TEST_P(StepHangLanes, IfADiskHangsTheLineSaysSoAndTheHelperEnds) {
  const fs::path pack = make_big_pack("p");
  WriteHangs hangs;
  system_ = &hangs;
  for (const OnError on_error : {OnError::fail, OnError::source}) {
    SCOPED_TRACE(on_error == OnError::fail);
    StepSrun srun;
    start_all(pack, StepMode::block, on_error);
    EXPECT_THAT(finish(), testing::Each(1));
    EXPECT_THAT(srun.end(), testing::StartsWith(fmt::format(
                                "n2: no answer from the local disk of n2 ({}) for 2.00 s: ", at("cache1"))));
    nodes_.clear();
  }
}

TEST_P(StepHangLanes, IfADiskHangsInTheBackgroundTheOthersGoOn) {
  const fs::path pack = make_big_pack("p");
  WriteHangs hangs;
  system_ = &hangs;
  StepSrun srun;
  start_all(pack, StepMode::background, OnError::fail);
  EXPECT_THAT(finish(), testing::Each(0));
  end_background(srun);
  for (const int node : {0, 2}) expect_copy(pack, node);
  EXPECT_THAT(said(kStuck),
              HasSubstr(fmt::format("n2: no answer from the local disk of n2 ({})", at("cache1"))));
}

TEST_F(StepHang, AHangingNodeReleasesTheLockOfTheJobsFolder) {
  write("plain/a", "in the first chunk alone");
  write("plain/b", std::string(ChunkPlan::kChunkBytes + 1000, 'b'));
  HangsWhileItLinks hangs(folder_ / "plain");
  system_ = &hangs;
  cooperate_ = false;
  StepSrun srun;
  start_all(folder_ / "plain", StepMode::background, OnError::fail);
  EXPECT_THAT(finish(), testing::Each(0));
  for (int node = 0; node < kNodes; ++node) {
    int status = 0;
    EXPECT_GT(::wait(&status), 0);
    EXPECT_TRUE(WIFEXITED(status)) << "the node was killed";
  }
  srun.end();
  EXPECT_THAT(said(kStuck), AllOf(HasSubstr("no answer from "), HasSubstr("from the source")));
  EXPECT_EQ(lines(said(kStuck)), 1) << said(kStuck);
  // Files that were linked before lead to the source again, and no file is linked afterwards.
  const fs::path data_of = data("plain", kStuck);
  if (!fs::is_symlink(data_of)) {
    for (const fs::directory_entry& file : fs::directory_iterator(data_of)) EXPECT_TRUE(file.is_symlink());
  }
  EXPECT_EQ(content_of(data("plain/", kStuck)), content_of(folder_ / "plain"));
}

}  // namespace
}  // namespace lockstep::transfer
