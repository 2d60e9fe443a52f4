#include "staging/transfer/supervisor.h"

#include <unistd.h>

#include <csignal>

#include "common/pending_calls.h"
#include "common/process.h"
#include "tests/unit/staging/staging_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using testing::HasSubstr;

class SupervisorTest : public staging_test::StagingTest {
 protected:
  /// Supervises a child that does `work`, from a separate process. Returns as text what the supervisor sees.
  std::string see(const std::function<void()>& work, const SuperviseOptions& options = {}) const {
    staging_test::in_child([&] {
      const std::optional<ChildEnd> end = run_supervised(options);
      if (!end) return work();
      if (!end->stuck.empty()) end_child(end->pid);
      write("seen", fmt::format("{} {} {}", end->code, end->disk ? "disk" : "source", end->stuck));
    });
    return staging_test::read(folder_ / "seen");
  }
  /// As see(), for a child that is stuck in a call for this path.
  std::string see_stuck(const fs::path& path) const {
    return see(
        [&] {
          const PendingCall call(path);
          for (;;) ::pause();
        },
        {.call_timeout = std::chrono::milliseconds(100),
         .disk_folders = {folder_ / "cache", ""},
         .disk_name = "the local disk of n1"});
  }
};

TEST_F(SupervisorTest, TellsHowTheChildEnded) {
  EXPECT_EQ(see([] { ::_exit(3); }), "3 source ");
  EXPECT_EQ(see([] { ::raise(SIGTERM); }), "143 source ");
}

TEST_F(SupervisorTest, NamesTheFileOfACallThatDoesNotReturn) {
  EXPECT_THAT(see_stuck("/source/file"), HasSubstr("source no answer from /source/file for 100 ms: "));
  EXPECT_THAT(see_stuck(folder_ / "cache2/x"), HasSubstr("source no answer from " + folder_.string()));
}

TEST_F(SupervisorTest, DistinguishesTheDiskFromTheSource) {
  EXPECT_THAT(see_stuck(folder_ / "cache/objects/x"),
              HasSubstr("disk no answer from the local disk of n1 for 100 ms: "));
}

TEST_F(SupervisorTest, TheChildEndsWithItsSupervisor) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const pid_t supervisor = staging_test::start_child([&] {
    if (run_supervised({})) return;
    EXPECT_EQ(::write(ends[1], "x", 1), 1);
    for (;;) ::pause();
  });
  ::close(ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ends[0], &byte, 1), 1);
  ::kill(supervisor, SIGKILL);
  EXPECT_EQ(::read(ends[0], &byte, 1), 0) << "the child has the other end of the pipe";
  ::close(ends[0]);
  staging_test::end_of(supervisor);
}

}  // namespace
}  // namespace lockstep::transfer
