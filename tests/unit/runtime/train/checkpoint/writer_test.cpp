// Checkpoints on disk: whatever happens while one is written, the one before it can be loaded.
#include "runtime/train/checkpoint/writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): setenv
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <numeric>
#include <set>
#include <thread>

#include "common/leaf/cpu_list.h"
#include "runtime/train/checkpoint/file_progress.h"
#include "runtime/train/checkpoint/reader.h"
#include "tests/unit/exporters/temporary_folder.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;
using staging_test::FailsAt;
using staging_test::KilledAt;
using staging_test::WatchedFileSystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

constexpr int kMaxCalls = 300;

TEST(Background, WritesOnTheWorkersCpus) {
  const std::vector<int> all = cpus_of_this_thread();
  if (all.size() < 2) GTEST_SKIP() << "there is one CPU";
  ::setenv("LOCKSTEP_WORKER_CPUS", std::to_string(all.back()).c_str(), 1);
  std::vector<int> cpus;
  Background background;
  background.start([&](const auto& /*released*/) { cpus = cpus_of_this_thread(); });
  background.wait_for_all();
  ::unsetenv("LOCKSTEP_WORKER_CPUS");
  EXPECT_EQ(cpus, std::vector<int>{all.back()});
}

class Checkpoints : public ::testing::Test {
 protected:
  WriterOptions options(int rank = 0, int ranks = 1) const {
    return {.folder = folder_ / "run",
            .local_dir = local_,
            .keep = 2,
            .timeout_seconds = 20,
            .rank = rank,
            .ranks = ranks,
            .node = "n1",
            .run = "r",
            .training = "t"};
  }

  static std::string content(std::int64_t step, int rank) {
    return fmt::format("step {} of rank {} ", step, rank) + std::string(2000, 'x');
  }

  static void write(Writer& writer, std::int64_t step, int rank = 0, int ranks = 1) {
    std::vector<int> writers(static_cast<std::size_t>(ranks));
    std::iota(writers.begin(), writers.end(), 0);
    const std::string text = content(step, rank);
    const std::string more(100, static_cast<char>('a' + rank));
    writer.write(step,
                 {{fmt::format("model-{}", rank), "model", std::as_bytes(std::span(text))},
                  {fmt::format("more-{}", rank), "", std::as_bytes(std::span(more))}},
                 writers, [] {});
  }

  void write(std::int64_t step) const {
    Writer writer(options(), FileSystem::real());
    write(writer, step);
  }

  /// The second rank of two, in the same folder.
  void write_rank_1() const {
    Writer second(options(1, 2), FileSystem::real());
    write(second, 7, 1, 2);
  }

  /// The step of the newest checkpoint, after comparing its content; -1 if there is none.
  std::int64_t newest(std::vector<std::string>* skipped = nullptr) const {
    FileProgress progress;
    CheckpointSearch search(FileSystem::real(), folder_ / "run", progress, [&](const std::string& line) {
      if (skipped != nullptr) skipped->push_back(line);
    });
    const auto found = find(search, progress);
    if (!found) return -1;
    EXPECT_EQ(read_text_file(found->folder / "model-0"), content(found->manifest.step, 0));
    return found->manifest.step;
  }

  /// The first one whose files are all as they were written.
  static std::optional<Found> find(CheckpointSearch& search, FileProgress& progress) {
    while (auto found = search.next()) {
      try {
        for (const FileEntry& file : found->manifest.files)
          read_file(FileSystem::real(), found->folder, file, {}, progress);
        return found;
      } catch (const Damaged& damage) {
        search.reject(damage.what());
      }
    }
    return std::nullopt;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / "run"))
      names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }

  void use_local_dir() {
    local_ = folder_ / "local";
    fs::create_directory(local_);
  }

  void expect_previous_survives_every_kill();
  void expect_previous_survives_a_full_disk(int error);

  testing::TemporaryFolder folder_;
  fs::path local_;
};

int end_of_child(const std::function<void()>& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

void Checkpoints::expect_previous_survives_every_kill() {
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    fs::remove_all(folder_ / "run");
    for (const int step : {1, 2}) write(step);
    const int code = end_of_child([&] {
      KilledAt system(call);
      Writer writer(options(), system);
      write(writer, 3);
    });
    const std::int64_t step = newest();
    EXPECT_TRUE(step == 2 || step == 3) << step;
    write(4);  // the next run
    EXPECT_EQ(newest(), 4);
    EXPECT_THAT(names(), AllOf(SizeIs(2), ::testing::Each(::testing::StartsWith("step-"))));
    EXPECT_TRUE(local_.empty() || fs::is_empty(local_));
    if (HasFailure() || code == 0) break;
    ASSERT_EQ(code, staging_test::kKilled);
  }
  EXPECT_GT(call, 20) << "the calls do not go through the seam";
  EXPECT_LT(call, kMaxCalls);
}

void Checkpoints::expect_previous_survives_a_full_disk(int error) {
  for (int call = 1; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    fs::remove_all(folder_ / "run");
    for (const int step : {1, 2}) write(step);
    FailsAt system(call, error);
    Writer writer(options(), system);
    bool failed = false;
    try {
      write(writer, 3);
    } catch (const Error& thrown) {
      failed = true;
      EXPECT_THAT(thrown.what(), HasSubstr("cannot write the checkpoint of step 3: rank 0 on n1: "));
    }
    const std::int64_t step = newest();
    EXPECT_TRUE(step == 2 || step == 3) << step;
    EXPECT_TRUE(failed || step == 3);
    if (!system.failed()) {
      EXPECT_GT(call, 20) << "the calls do not go through the seam";
      return;
    }
    write(writer, 4);  // training went on
    EXPECT_EQ(newest(), 4);
    EXPECT_THAT(names(), SizeIs(2));
    if (HasFailure()) return;
  }
  FAIL() << "too many calls";
}

TEST_F(Checkpoints, KilledAtAnyCallThePreviousOneIsGood) {
  expect_previous_survives_every_kill();
}

TEST_F(Checkpoints, KilledAtAnyCallWithALocalFolderThePreviousOneIsGood) {
  use_local_dir();
  expect_previous_survives_every_kill();
}

TEST_F(Checkpoints, OnAFullDiskThePreviousOneIsGoodAndTheNextOneIsWritten) {
  expect_previous_survives_a_full_disk(ENOSPC);
}

TEST_F(Checkpoints, OnAFullDiskWithALocalFolderThePreviousOneIsGood) {
  use_local_dir();
  expect_previous_survives_a_full_disk(EIO);
}

// As NFS answers while a process has a file of the folder open.
TEST_F(Checkpoints, OldOnesThatCannotBeRemovedDoNotFailNewOnes) {
  WatchedFileSystem busy([](int, const FileCall& call) {
    const bool removes_folder =
        call.kind == FileCall::Kind::rmdir || (call.kind == FileCall::Kind::unlinkat && call.flags != 0);
    return removes_folder ? ENOTEMPTY : 0;
  });
  Writer writer(options(), busy);
  for (const int step : {1, 2, 3, 4}) write(writer, step);
  EXPECT_EQ(newest(), 4);
  write(5);  // the next run
  EXPECT_THAT(names(), ElementsAre("step-000004", "step-000005"));
}

// A kill leaves what was written; a node that loses power leaves what was synced.
TEST_F(Checkpoints, EverythingIsSyncedBeforeItGetsItsName) {
  const fs::path temporary = folder_ / "run/.step-000001.t.r.1";
  std::set<std::string> not_synced;
  bool renamed = false;
  bool named_durably = false;
  bool folder_named_durably = false;
  WatchedFileSystem system([&](int, const FileCall& call) {
    const fs::path path = call.path;
    if (call.kind == FileCall::Kind::write) not_synced.insert(path);
    if (call.kind == FileCall::Kind::fsync) not_synced.erase(path);
    if (path.parent_path() == temporary && call.kind == FileCall::Kind::open) not_synced.insert(temporary);
    if (call.kind == FileCall::Kind::rename && path == temporary) {
      EXPECT_THAT(not_synced, ::testing::IsEmpty());
      EXPECT_TRUE(folder_named_durably);
      renamed = true;
    }
    if (call.kind == FileCall::Kind::fsync && path == folder_ / "run") named_durably = renamed;
    if (call.kind == FileCall::Kind::fsync && path == folder_.path())
      folder_named_durably = fs::exists(folder_ / "run");
    return 0;
  });
  Writer writer(options(), system);
  write(writer, 1);
  EXPECT_TRUE(named_durably);
}

TEST_F(Checkpoints, OtherPeoplesFilesAreNotRemoved) {
  fs::create_directories(folder_ / "run/step-000001");  // not a checkpoint
  write_file_atomically(folder_ / "run/notes.txt", "mine");
  for (const int step : {5, 10, 15}) write(step);
  EXPECT_THAT(names(), ElementsAre("notes.txt", "step-000001", "step-000010", "step-000015"));
}

TEST_F(Checkpoints, ADamagedOneIsSkippedWithALine) {
  for (const int step : {5, 10}) write(step);
  const std::string whole = read_text_file(folder_ / "run/step-000010/model-0");
  std::string changed = whole;
  changed[0] = 'X';
  for (const std::string& damage : {whole.substr(1), changed, std::string()}) {
    write_file_atomically(folder_ / "run/step-000010/model-0", damage);
    std::vector<std::string> skipped;
    EXPECT_EQ(newest(&skipped), 5);
    EXPECT_THAT(skipped, ElementsAre(AllOf(HasSubstr("step-000010 is damaged: model-0 "),
                                           HasSubstr("using the one before it"))));
  }
  fs::remove(folder_ / "run/step-000010/model-0");
  EXPECT_EQ(newest(), 5);
  write(10);  // the resumed training comes to this step again
  EXPECT_EQ(newest(), 10);
  EXPECT_THAT(names(), ElementsAre("step-000005", "step-000010"));
}

TEST_F(Checkpoints, ADamagedOneThatIsSetAsideDoesNotCountAsOne) {
  for (const int step : {5, 10}) write(step);
  write_file_atomically(folder_ / "run/step-000010/model-0", "damaged");
  FileProgress progress;
  CheckpointSearch search(FileSystem::real(), folder_ / "run", progress, [](const std::string&) {});
  find(search, progress);
  EXPECT_THAT(search.damaged(), ElementsAre(folder_ / "run/step-000010"));
  Writer writer(options(), FileSystem::real());
  writer.rename_damaged(search.damaged().at(0));
  write(writer, 15);
  EXPECT_THAT(names(), ElementsAre("damaged-step-000010-r", "step-000005", "step-000015"));
}

TEST_F(Checkpoints, IfAllAreDamagedTrainingDoesNotStartAgainSilently) {
  for (const int step : {5, 10}) {
    write(step);
    fs::remove(folder_ / "run" / folder_name(step) / kManifestName);
  }
  EXPECT_THAT([&] { newest(); },
              ThrowsMessage<Error>(AllOf(HasSubstr("step-000005 is damaged: it has no manifest.json"),
                                         HasSubstr("to start from the beginning"))));
  write(10);
  EXPECT_THAT(names(), ElementsAre("damaged-step-000010-r", "step-000005", "step-000010"));
}

TEST_F(Checkpoints, WithoutAFolderThereIsNone) {
  EXPECT_EQ(newest(), -1);
  write_file_atomically(folder_ / "run", "a file");
  EXPECT_THAT([&] { newest(); }, ThrowsMessage<Error>(HasSubstr("cannot open")));
}

TEST_F(Checkpoints, TheLastRankToFinishMakesItValid) {
  Writer first(options(0, 3), FileSystem::real());
  Writer second(options(1, 3), FileSystem::real());
  Writer third(options(2, 3), FileSystem::real());
  std::thread rank0([&] { write(first, 7, 0, 3); });
  write(second, 7, 1, 3);
  EXPECT_EQ(newest(), -1) << "a rank is missing";
  write(third, 7, 2, 3);
  rank0.join();
  EXPECT_EQ(newest(), 7);
  FileProgress progress;
  CheckpointSearch search(FileSystem::real(), folder_ / "run", progress, [](const std::string&) {});
  const Manifest manifest = find(search, progress).value().manifest;
  ASSERT_EQ(manifest.files.size(), 6U);
  EXPECT_EQ(read_text_file(folder_ / "run/step-000007" / manifest.files[4].name), content(7, 2));
  EXPECT_EQ(manifest.files[4].rank, 2);
  EXPECT_EQ(manifest.ranks, 3);
}

TEST_F(Checkpoints, AMissingRankIsNamed) {
  auto impatient = options(0, 3);
  impatient.timeout_seconds = 0.05;
  Writer first(impatient, FileSystem::real());
  Writer second(options(1, 3), FileSystem::real());
  write(second, 7, 1, 3);
  EXPECT_THAT([&] { write(first, 7, 0, 3); },
              ThrowsMessage<Error>(HasSubstr("rank 2 has not written its files of step 7 within")));
  EXPECT_EQ(newest(), -1);
}

TEST_F(Checkpoints, ARankThatCannotWriteIsNamedByRankZero) {
  FailsAt full(6, ENOSPC);  // the space for its first file
  Writer first(options(0, 2), FileSystem::real());
  Writer second(options(1, 2), full);
  EXPECT_THAT([&] { write(second, 7, 1, 2); }, ThrowsMessage<Error>(HasSubstr("rank 1 on n1: cannot ")));
  EXPECT_THAT([&] { write(first, 7, 0, 2); },
              ThrowsMessage<Error>(AllOf(HasSubstr("rank 1 on n1: cannot "), HasSubstr("No space left"))));
  EXPECT_EQ(newest(), -1);
  EXPECT_THAT(names(), ElementsAre()) << "rank 0's files";
}

// Gives rank 0 what the ranks tell, as the control channel does.
struct Told {
  void connect(WriterOptions& options) {
    options.last_text_of = [this](int rank) { return texts[static_cast<std::size_t>(rank)]; };
    options.tell_rank_0 = [this, rank = options.rank](const std::string& text) {
      texts[static_cast<std::size_t>(rank)] = text;
    };
  }
  std::array<std::string, 2> texts;
};

TEST_F(Checkpoints, ARankThatCannotEvenWriteItsReportIsNamedWithTheReason) {
  WatchedFileSystem full([](int, const FileCall& call) {
    return call.kind == FileCall::Kind::fallocate || call.kind == FileCall::Kind::write ? ENOSPC : 0;
  });
  Told ranks;
  auto options0 = options(0, 2);
  auto options1 = options(1, 2);
  ranks.connect(options0);
  ranks.connect(options1);
  Writer first(options0, FileSystem::real());
  Writer second(options1, full);
  EXPECT_THROW(write(second, 7, 1, 2), Error);
  EXPECT_THAT([&] { write(first, 7, 0, 2); },
              ThrowsMessage<Error>(AllOf(HasSubstr("rank 1 on n1: cannot "), HasSubstr("No space left"))));
}

TEST_F(Checkpoints, ARankThatWritesSlowlyIsWaitedFor) {
  auto impatient = options(0, 2);
  impatient.timeout_seconds = 0.2;
  std::atomic<int> looks = 0;
  impatient.last_text_of = [&](int) {  // another number of bytes at each look, for longer than the timeout
    if (++looks == 8) write_rank_1();
    return fmt::format(R"({{"checkpoint": ".step-000007.t.r.1", "bytes": {}, "error": ""}})", looks.load());
  };
  Writer first(impatient, FileSystem::real());
  write(first, 7, 0, 2);
  EXPECT_EQ(newest(), 7);
}

TEST_F(Checkpoints, TheTimeForWhichTheJobWasSuspendedIsNoWaiting) {
  auto suspended = options(0, 2);
  suspended.timeout_seconds = 0.2;
  int looks = 0;
  suspended.last_text_of = [&](int) {
    if (++looks == 1) ::raise(SIGSTOP);
    if (looks == 2) write_rank_1();
    return std::string();
  };
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      Writer first(suspended, FileSystem::real());
      write(first, 7, 0, 2);
    } catch (const std::exception& error) {
      fmt::print(stderr, "{}\n", error.what());
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  ASSERT_TRUE(WIFSTOPPED(status));
  std::this_thread::sleep_for(std::chrono::milliseconds(400));  // suspended for longer than the timeout
  ::kill(child, SIGCONT);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(newest(), 7);
}

TEST_F(Checkpoints, ARankWithoutFilesIsNotWaitedFor) {
  Writer first(options(0, 3), FileSystem::real());
  Writer second(options(1, 3), FileSystem::real());
  second.write(7, {}, {0}, [] {});
  EXPECT_FALSE(fs::exists(folder_ / "run")) << "it has nothing to write";
  write(first, 7);
  EXPECT_EQ(newest(), 7);
}

TEST_F(Checkpoints, FilesOfAnotherTrainingAreNeverRemoved) {
  auto theirs = options();
  theirs.training = "other";
  Writer other(theirs, FileSystem::real());
  for (const int step : {1, 2}) write(other, step);
  fs::create_directories(folder_ / "run/.step-000003.other.s.1");
  fs::create_directories(folder_ / "run/.step-000003.t.s.1");     // a killed run of this training
  fs::create_directories(folder_ / "run/.step-000003.dead.x.1");  // of the process that had the lock
  auto mine = options();
  mine.dead_run = "x";
  Writer writer(mine, FileSystem::real());
  for (const int step : {5, 10, 15}) write(writer, step);
  EXPECT_THAT(names(), ElementsAre(".step-000003.other.s.1", "step-000001", "step-000002", "step-000010",
                                   "step-000015"));
  write(other, 20);
  EXPECT_THAT([&] { write(writer, 20); },
              ThrowsMessage<Error>(HasSubstr("is a checkpoint of another training")));
}

TEST_F(Checkpoints, ALostLockEndsTheWriting) {
  auto options = this->options();
  options.check_lock = [] { fail("another program has taken over"); };
  Writer writer(options, FileSystem::real());
  EXPECT_THAT([&] { write(writer, 7); }, ThrowsMessage<Error>(HasSubstr("has taken over")));
  EXPECT_FALSE(fs::exists(folder_ / "run/step-000007"));
}

// The digest in the manifest is the memory's, so a copy that differs must not become the checkpoint.
TEST_F(Checkpoints, WhatTheLocalDiskChangedIsNotPublished) {
  use_local_dir();
  write(1);
  struct Changes : FileSystem {
    ssize_t call(const FileCall& call) override {
      const ssize_t got = FileSystem::call(call);
      if (call.kind == Kind::read && got > 0 && std::string(call.path).find("model-0") != std::string::npos)
        call.into[0] ^= std::byte{1};
      return got;
    }
  } changes;
  Writer writer(options(), changes);
  EXPECT_THAT([&] { write(writer, 2); }, ThrowsMessage<Error>(HasSubstr("was changed on the node's disk")));
  EXPECT_EQ(newest(), 1);
}

TEST_F(Checkpoints, TheMemoryIsReleasedBeforeTheCopyFromTheLocalFolder) {
  use_local_dir();
  bool released = false;
  bool copied_before = false;
  WatchedFileSystem system([&](int, const FileCall& call) {
    if (call.kind == FileCall::Kind::write && std::string(call.path).find(".step-") != std::string::npos &&
        std::string(call.path).ends_with("model-0"))
      copied_before = copied_before || !released;
    return 0;
  });
  Writer writer(options(), system);
  const std::string text = content(1, 0);
  writer.write(1, {{"model-0", "model", std::as_bytes(std::span(text))}}, {0}, [&] { released = true; });
  EXPECT_TRUE(released);
  EXPECT_FALSE(copied_before);
  EXPECT_EQ(newest(), 1);
}

}  // namespace
}  // namespace lockstep::checkpoint
