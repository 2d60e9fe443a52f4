// One training at a time writes into a folder of checkpoints.
#include "runtime/train/checkpoint/folder_lock.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>

#include "common/environment.h"
#include "common/error.h"
#include "common/files.h"
#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::checkpoint {
namespace {

using namespace std::chrono_literals;
using staging_test::KilledAt;
using staging_test::WatchedFileSystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

class FolderLocks : public ::testing::Test {
 protected:
  static LockHolder holder(const std::string& job, const std::string& run, const std::string& machine = "m") {
    LockHolder holder = LockHolder::here(run);
    holder.node = "n1";
    holder.machine = machine;
    holder.cluster = "c";
    holder.job = job;
    holder.step = "0";
    return holder;
  }
  /// A holder on another node that did not remove its lock.
  void leave_lock(const LockHolder& holder) const {
    const auto lock = take(holder);
    std::filesystem::copy_file(folder_ / ".lock", folder_ / "copy");
    std::filesystem::rename(folder_ / "copy", folder_ / ".lock");
  }
  /// A squeue with this body.
  void set_squeue(const std::string& body) {
    std::filesystem::create_directory(folder_ / "bin");
    std::ofstream(folder_ / "bin/squeue")
        << "#!/bin/sh\necho \"$*\" >> " << (folder_ / "asked").string() << "\n"
        << body << "\n";
    std::filesystem::permissions(folder_ / "bin/squeue", std::filesystem::perms::owner_all);
    ::setenv("PATH", ((folder_ / "bin").string() + ":" + path_).c_str(), 1);
  }
  void TearDown() override { ::setenv("PATH", path_.c_str(), 1); }
  std::unique_ptr<FolderLock> take(const LockHolder& mine, FolderLockOptions options = {}) const {
    return std::make_unique<FolderLock>(FileSystem::real(), folder_.path(), mine, std::move(options));
  }
  /// A holder on this node whose process has ended.
  void leave_dead_lock(const std::string& run) const {
    LockHolder dead = holder("12", run);
    ++dead.began;
    leave_lock(dead);
  }
  std::unique_ptr<FolderLock> take_through(FileSystem& system, const LockHolder& mine) const {
    FolderLockOptions options;
    options.grace = 0ms;
    return std::make_unique<FolderLock>(system, folder_.path(), mine, options);
  }
  /// nullptr if it does not get the lock at once.
  std::unique_ptr<FolderLock> try_take(FileSystem& system, const LockHolder& mine) const {
    try {
      return take_through(system, mine);
    } catch (const Error&) {
      return nullptr;
    }
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      names.push_back(entry.path().filename().string());
    return names;
  }
  bool locked() const { return std::filesystem::exists(folder_ / ".lock"); }

  testing::TemporaryFolder folder_;
  std::string path_ = environment::get_or("PATH", "");
};

TEST_F(FolderLocks, ASecondTrainingGetsALineThatNamesTheFirst) {
  const auto first = take(holder("12", "a"));
  EXPECT_THAT(
      [&] { take(holder("13", "b"), {.grace = 20ms}); },
      ThrowsMessage<Error>(AllOf(HasSubstr(fmt::format("step 12.0 (process {} on n1) uses", ::getpid())),
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

TEST_F(FolderLocks, AnotherStepOfTheJobWaitsForTheEndOfTheFirst) {
  auto first = take(holder("12", "a"));
  int waits = 0;
  FolderLockOptions options;
  options.waiting = [&] {
    if (++waits == 2) first.reset();
  };
  take(holder("12", "b"), options);
  EXPECT_EQ(waits, 2);
}

TEST_F(FolderLocks, AnotherStepOfTheJobDoesNotWaitForEver) {
  const auto first = take(holder("12", "a"));
  EXPECT_THAT([&] { take(holder("12", "b"), {.wait = 20ms}); }, ThrowsMessage<Error>(HasSubstr("step 12.0")));
}

TEST_F(FolderLocks, OfProcessesThatAskTogetherOneHasTheLock) {
  constexpr int kProcesses = 4;
  leave_lock(holder("12", "dead", "elsewhere"));
  set_squeue("");
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    int code = 0;
    for (int round = 0; round < 10; ++round) {
      const auto lock = take(holder("12", fmt::format("{}-{}", i, round)));
      if (::mkdir((folder_ / "inside").c_str(), 0700) != 0) code = 1;
      ::rmdir((folder_ / "inside").c_str());
    }
    ::_exit(code);
  }
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
  }
  EXPECT_FALSE(locked());
  for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
    EXPECT_FALSE(entry.path().filename().string().starts_with(".lock")) << entry.path();
}

// The second one finds the same dead holder. At each of its calls the first one takes the lock over, and at each later
// call a third one tries.
TEST_F(FolderLocks, OfProcessesThatFindTheSameDeadHolderOneHasTheLock) {
  bool more = true;
  int taken_over = 0;
  for (int first_at = 1; more; ++first_at) {
    more = false;
    for (int third_at = first_at; third_at <= first_at + 20; ++third_at) {
      leave_dead_lock("dead");
      std::unique_ptr<FolderLock> first;
      std::unique_ptr<FolderLock> third;
      WatchedFileSystem second_system(
          [&](int call, const FileCall&) {
            if (call == first_at) first = try_take(FileSystem::real(), holder("13", "first"));
            if (call == third_at) third = try_take(FileSystem::real(), holder("14", "third"));
            return 0;
          },
          true);
      const auto second = try_take(second_system, holder("15", "second"));
      more = more || second_system.calls() >= first_at;
      taken_over += first ? 1 : 0;
      int have_it = 0;
      for (const auto* lock : {first.get(), second.get(), third.get()}) {
        if (lock == nullptr) continue;
        ++have_it;
        EXPECT_FALSE(lock->lost()) << "first at " << first_at << ", third at " << third_at;
      }
      EXPECT_EQ(have_it, 1) << "first at " << first_at << ", third at " << third_at;
    }
  }
  EXPECT_GT(taken_over, 0);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(FolderLocks, AProcessThatIsKilledWhileItTakesTheLockOverDoesNotKeepIt) {
  const auto starts_to_take = [&](int kill_at) {
    leave_dead_lock("dead");
    const pid_t child = ::fork();
    if (child == 0) {
      KilledAt system(kill_at, true);
      const auto lock = take_through(system, holder("13", "killed"));
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status);
  };
  int at_the_second_lock = 0;
  for (int kill_at = 1; starts_to_take(kill_at); ++kill_at) {
    at_the_second_lock += std::filesystem::exists(folder_ / ".lock.next") ? 1 : 0;
    EXPECT_THAT(take_through(FileSystem::real(), holder("14", "b"))->dead_run(), AnyOf("dead", "killed"));
    EXPECT_FALSE(std::filesystem::exists(folder_ / ".lock.next")) << kill_at;
    std::filesystem::remove(folder_ / ".lock.killed");  // of one that was killed before it had the lock
    EXPECT_THAT(left(), IsEmpty()) << kill_at;
  }
  EXPECT_GT(at_the_second_lock, 0);
}

TEST_F(FolderLocks, AHolderOnAnotherNodeIsDeadWhenSlurmNoLongerKnowsItsStep) {
  leave_lock(holder("12", "a", "elsewhere"));
  set_squeue("echo 12.0");
  EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 0ms}); }, ThrowsMessage<Error>(HasSubstr("step 12.0")));
  EXPECT_THAT(read_text_file(folder_ / "asked"), HasSubstr("--steps=12.0"));
  set_squeue("");
  EXPECT_EQ(take(holder("13", "b"))->dead_run(), "a");
}

TEST_F(FolderLocks, OutsideAStepTheJobCounts) {
  LockHolder batch = holder("12", "a", "elsewhere");
  batch.step.clear();
  leave_lock(batch);
  set_squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1");
  EXPECT_EQ(take(holder("13", "b"))->dead_run(), "a");
  EXPECT_THAT(read_text_file(folder_ / "asked"), HasSubstr("--jobs=12"));
}

TEST_F(FolderLocks, WithoutAnAnswerTheLockIsTakenByHandOnly) {
  leave_lock(holder("12", "a", "elsewhere"));
  set_squeue("echo 'Unable to contact slurm controller' >&2; exit 1");
  EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 0ms}); },
              ThrowsMessage<Error>(AllOf(HasSubstr("step 12.0"), HasSubstr("CheckpointerOptions::force"))));
  EXPECT_EQ(take(holder("13", "b"), {.force = true})->dead_run(), "a");
}

TEST_F(FolderLocks, AnotherClusterIsNotAskedForTheHolder) {
  LockHolder other = holder("12", "a", "elsewhere");
  other.cluster = "d";
  leave_lock(other);
  set_squeue("");
  EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 0ms}); }, ThrowsMessage<Error>(HasSubstr("step 12.0")));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "asked"));
}

TEST_F(FolderLocks, ByHandALivingHolderKeepsTheLock) {
  const auto first = take(holder("12", "a"));
  EXPECT_THAT([&] { take(holder("13", "b"), {.grace = 0ms, .force = true}); },
              ThrowsMessage<Error>(HasSubstr("step 12.0")));
  EXPECT_FALSE(first->lost());
}

TEST_F(FolderLocks, ARequeuedJobTakesTheLockOfItsEarlierRun) {
  leave_lock(holder("12", "a", "elsewhere"));
  set_squeue("echo 12.0");  // its own step
  LockHolder again = holder("12", "b");
  again.restart = "1";
  EXPECT_EQ(take(again)->dead_run(), "a");
}

TEST_F(FolderLocks, ALockThatIsTakenOverIsLost) {
  const auto first = take(holder("12", "a", "elsewhere"));
  std::filesystem::remove(folder_ / ".lock");
  EXPECT_TRUE(first->lost());
  const auto second = take(holder("13", "b"));
  EXPECT_TRUE(first->lost());
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
