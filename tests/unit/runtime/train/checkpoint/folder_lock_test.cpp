// One training at a time writes into a folder of checkpoints.
#include "runtime/train/checkpoint/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <optional>

#include "common/error.h"
#include "common/files.h"
#include "tests/unit/exporters/temporary_folder.h"

namespace lockstep::checkpoint {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

class FolderLocks : public ::testing::Test {
 protected:
  static LockHolder holder(const std::string& job, const std::string& run, const std::string& machine = "m") {
    LockHolder holder = LockHolder::here(run);
    holder.node = "n1";
    holder.machine = machine;
    holder.job = job;
    return holder;
  }
  std::unique_ptr<FolderLock> take(const LockHolder& mine, FolderLockOptions options = {}) const {
    return std::make_unique<FolderLock>(FileSystem::real(), folder_.path(), mine, std::move(options));
  }
  bool locked() const { return std::filesystem::exists(folder_ / ".lock"); }

  testing::TemporaryFolder folder_;
};

TEST_F(FolderLocks, ASecondTrainingGetsALineThatNamesTheFirst) {
  const auto first = take(holder("12", "a"));
  EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 20ms}); },
              ThrowsMessage<Error>(AllOf(HasSubstr(fmt::format("job 12 (process {} on n1) uses", ::getpid())),
                                         HasSubstr(folder_.path().string()))));
  EXPECT_THAT([&] { take(holder("", "b"), {.grace = 0ms}); },
              ThrowsMessage<Error>(HasSubstr("give each training a folder")));
  EXPECT_FALSE(first->lost());
}

TEST_F(FolderLocks, TheNextTrainingGetsTheFolderWhenTheFirstHasEnded) {
  take(holder("12", "a")).reset();
  EXPECT_FALSE(locked());
  EXPECT_EQ(take(holder("13", "b"))->dead_run(), "");
}

TEST_F(FolderLocks, AKilledHolderOnThisNodeIsNoticedAtOnce) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto lock = take(holder("12", "a"));
    ::raise(SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  ASSERT_TRUE(locked());
  EXPECT_EQ(take(holder("13", "b"))->dead_run(), "a");
}

TEST_F(FolderLocks, ARequeuedJobWaitsForTheEndOfItsEarlierRun) {
  auto first = take(holder("12", "a"));
  int waits = 0;
  FolderLockOptions options;
  options.waiting = [&] {
    if (++waits == 2) first.reset();
  };
  take(holder("12", "b"), options);
  EXPECT_EQ(waits, 2);
}

TEST_F(FolderLocks, ARequeuedJobDoesNotWaitForEver) {
  const auto first = take(holder("12", "a"));
  EXPECT_THAT([&] { take(holder("12", "b"), {.wait = 20ms}); }, ThrowsMessage<Error>(HasSubstr("job 12")));
}

TEST_F(FolderLocks, AHolderOnAnotherNodeLivesAsLongAsItsLockChanges) {
  {
    const auto first = take(holder("12", "a", "elsewhere"), {.beat = 10ms});
    EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 0ms}); }, ThrowsMessage<Error>(HasSubstr("job 12")));
  }
  const auto silent = take(holder("12", "a", "elsewhere"));
  EXPECT_EQ(take(holder("13", "b"), {.stale = 100ms})->dead_run(), "a");
}

TEST_F(FolderLocks, ALockThatIsTakenOverIsLost) {
  const auto first = take(holder("12", "a", "elsewhere"), {.beat = 200ms});
  const std::string text = read_text_file(folder_ / ".lock");
  std::filesystem::remove(folder_ / ".lock");
  const auto second = take(holder("13", "b"));
  while (!first->lost()) std::this_thread::sleep_for(5ms);
  EXPECT_FALSE(second->lost());
  EXPECT_THAT(read_text_file(folder_ / ".lock"), HasSubstr("\"run\":\"b\""));
}

TEST_F(FolderLocks, ALockThatIsNotAFileIsRefused) {
  const auto refused = ThrowsMessage<Error>(
      AllOf(HasSubstr((folder_ / ".lock").string() + " is not a file"), HasSubstr("remove it")));
  std::filesystem::create_directory(folder_ / ".lock");
  EXPECT_THAT([&] { take(holder("12", "a")); }, refused);
  std::filesystem::remove(folder_ / ".lock");
  std::filesystem::create_symlink("nowhere", folder_ / ".lock");
  EXPECT_THAT([&] { take(holder("12", "a")); }, refused);
}

TEST_F(FolderLocks, AFolderThatCannotBeWrittenIsRefused) {
  EXPECT_THAT([&] { FolderLock(FileSystem::real(), "/proc/self", holder("", "a")); },
              ThrowsMessage<Error>(HasSubstr("cannot write into the folder of checkpoints /proc/self")));
}

}  // namespace
}  // namespace lockstep::checkpoint
