// Kills the staging of a step, blocking and in the background, at every system call for files, or fails the
// call: the job never finds an incomplete file under $LOCKSTEP_DATA, the next step works, nothing leaks.

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "staging/cache/store.h"
#include "staging/step/stage_step.h"
#include "staging/step/step_report.h"
#include "tests/unit/staging/step/stage_step_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::WatchedFileSystem;

constexpr int kMaxCalls = 2000;

class StageStepKilled : public staging_test::StageStep {
 protected:
  StageStepKilled() {
    pack_ = make_large_pack("p", 25);
    write("plain/a", std::string(9000, 'a'));
    write("plain/sub/b", "b");
    write("alone/c", "c");
    sources_ = {pack_.string(), at("plain"), at("alone/c")};
    lease_ = lease("7.0");
  }

  /// Stages in a separate process, as the plugin's helper does. Returns the exit code, or 128 + SIGKILL.
  int stage(StepMode mode, OnError on_error, FileSystem& system) const {
    StepRequest request{.on_error = on_error, .lease = lease_file("7.0")};
    if (mode == StepMode::background) request = in_background(tasks_, request);
    StepCall call(on_node(0, request, sources_));
    call.put.file_system = &system;
    const pid_t helper = staging_test::start_child([&] {
      redirect_errors(0);
      try {
        stage_step(call);
      } catch (const std::exception& error) {
        print_for_job(error.what());
        ::_exit(1);
      }
    });
    int code = 0;
    int status = 0;
    for (pid_t ended = 0; (ended = ::wait(&status)) > 0;) {
      if (ended == helper) code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return code;
  }
  int stage(StepMode mode) const {
    WatchedFileSystem good([](int, const FileCall&) { return 0; });
    return stage(mode, OnError::fail, good);
  }

  /// Expects that every name in the job's folder can be read and has the content of the source.
  void expect_readable() const {
    const fs::path top = folder_ / "cache0/jobs/7/data";
    std::error_code none;
    for (const fs::directory_entry& entry :
         fs::recursive_directory_iterator(top, fs::directory_options::follow_directory_symlink, none)) {
      ASSERT_TRUE(fs::exists(entry.path())) << entry.path() << " leads nowhere";
      if (!entry.is_regular_file()) continue;
      const fs::path name = entry.path().lexically_relative(top);
      const fs::path source = name == "c" ? folder_ / "alone/c" : folder_ / name;
      EXPECT_EQ(staging_test::read(entry.path()), staging_test::read(source)) << name;
    }
  }
  void expect_all_names() const {
    for (const char* name : {"p", "plain", "c"}) EXPECT_TRUE(fs::exists(data(name))) << name;
  }
  /// Expects that every file is local, and that there is nothing that a step does not need.
  void expect_done() const {
    EXPECT_EQ(content_of(data("p")), content_of(pack_));
    EXPECT_EQ(content_of(data("plain")), content_of(folder_ / "plain"));
    EXPECT_EQ(staging_test::read(data("c")), "c");
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_ / "cache0/jobs/7"))
      EXPECT_FALSE(entry.is_symlink()) << entry.path();
    // A folder that had to be replaced lies in old/ until the job ends, because a task may stand in it.
    EXPECT_THAT(FileSystem::real().list(folder_ / "cache0/jobs/7"),
                testing::AnyOf(testing::ElementsAre("data", "lock", "staged.json"),
                               testing::ElementsAre("data", "lock", "old", "staged.json")));
    cache::Store store(folder_ / "cache0");
    const std::vector<std::string> objects = FileSystem::real().list(folder_ / "cache0/objects");
    EXPECT_EQ(objects.size(), 3U) << testing::PrintToString(objects);
    for (const std::string& object : objects) EXPECT_TRUE(store.leased(object)) << object;
    for (const std::string& name : FileSystem::real().list(folder_ / "cache0/locks"))
      EXPECT_TRUE(name == ".room" || store.has(name)) << name;
  }

  void forget_all() const {
    for (const char* name : {"objects", "jobs", "locks"})
      FileSystem::real().remove_all(folder_ / "cache0" / name);
    for (const std::string& name : FileSystem::real().list(folder_ / "cache0/leases")) {
      if (name != "held") FileSystem::real().remove_all(folder_ / "cache0/leases" / name);
    }
  }

  void expect_survives_kills(StepMode mode);

  fs::path pack_;
  std::vector<std::string> sources_;
  UniqueFd lease_;
  staging_test::Tasks tasks_;
};

void StageStepKilled::expect_survives_kills(StepMode mode) {
  int call = 1;
  int background = 0;  // kills while the step ran
  for (; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    forget_all();
    fs::remove(folder_ / "reached");
    WatchedFileSystem killer([&](int now, const FileCall&) {
      if (now != call) return 0;
      write("reached", "");
      ::raise(SIGKILL);
      return 0;
    });
    const int code = stage(mode, OnError::fail, killer);
    const bool killed = fs::exists(folder_ / "reached");
    expect_readable();
    if (mode == StepMode::background && code == 0) expect_all_names();
    ASSERT_EQ(stage(StepMode::block), 0) << said();
    expect_readable();
    expect_done();
    if (HasFailure()) break;
    if (!killed) {
      EXPECT_EQ(code, 0);
      break;
    }
    if (mode == StepMode::block) {
      ASSERT_EQ(code, 128 + SIGKILL);
    }
    background += mode == StepMode::background && code == 0 ? 1 : 0;
  }
  EXPECT_GT(call, 150) << "the calls do not go through FileSystem";
  EXPECT_LT(call, kMaxCalls);
  if (mode == StepMode::background) {
    EXPECT_GT(background, 100);
  }
}

TEST_F(StageStepKilled, KilledAtAnyCallTheJobReadsNoPartialFileAndTheNextStepWorks) {
  expect_survives_kills(StepMode::block);
}

TEST_F(StageStepKilled, KilledAtAnyCallInTheBackgroundNoLinkDanglesAndTheNextStepWorks) {
  expect_survives_kills(StepMode::background);
}

TEST_F(StageStepKilled, FailedAtAnyCallTheJobReadsFromTheSourceOrIsToldWhy) {
  int told = 0;
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    forget_all();
    write("error.0", "");
    fs::remove(folder_ / "reached");
    WatchedFileSystem full([&](int now, const FileCall&) {
      if (now == call) write("reached", "");
      return now == call ? ENOSPC : 0;
    });
    const int code = stage(call % 2 == 0 ? StepMode::background : StepMode::block, OnError::source, full);
    if (!fs::exists(folder_ / "reached")) break;
    expect_readable();
    const bool why = said().find("No space left on device") != std::string::npos;
    EXPECT_TRUE(code == 0 || why) << said();
    if (code == 0) expect_all_names();
    told += why ? 1 : 0;
    ASSERT_EQ(stage(StepMode::block), 0) << said();
    expect_done();
    if (HasFailure()) break;
  }
  EXPECT_GT(told, 50);
  EXPECT_LT(call, kMaxCalls);
}

}  // namespace
}  // namespace lockstep::transfer
