// Kills put() at every system call for files, or fails the call; and several calls of put() at the same time.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "staging/cache/store.h"
#include "staging/pack/reader.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/transfer/source_reads.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::StartsWith;

/// Watches reads and syncfs too.
class Watched : public staging_test::WatchedFileSystem {
 public:
  explicit Watched(const std::function<int(int n)>& before)
      : WatchedFileSystem([before](int n, const FileCall&) { return before(n); }) {}

 protected:
  bool watches(Kind kind) const override {
    return kind == Kind::read || kind == Kind::syncfs || WatchedFileSystem::watches(kind);
  }
};

class TransferFaults : public staging_test::StagingTest {
 protected:
  PutOptions options(FileSystem* system = nullptr) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = Verify::full;
    options.file_system = system;
    options.chunk_bytes = 16384;
    options.mark_bytes = 40'000;  // several marks
    options.threads = threads_;
    return options;
  }
  int threads_ = 2;
  PutResult put_one(const fs::path& source, FileSystem* system = nullptr) const {
    return put({source.string()}, options(system)).at(0);
  }
  std::vector<std::string> objects() const {
    if (!fs::exists(folder_ / "cache/objects")) return {};
    return FileSystem::real().list(folder_ / "cache/objects");
  }
  /// Every object with a name is complete; the next call works and cleans up.
  void expect_consistent(const fs::path& pack, int call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    for (const std::string& name : objects()) {
      if (name.starts_with('.')) continue;
      EXPECT_EQ(content_of(folder_ / "cache/objects" / name / "files"), content_of(pack));
    }
    const PutResult next = put_one(pack);
    EXPECT_EQ(next.note, "");
    EXPECT_EQ(content_of(next.path), content_of(pack));
    EXPECT_THAT(objects(), ElementsAre(next.object));
  }
  void expect_survives_kills(const fs::path& pack);
  void clear_cache() const { FileSystem::real().remove_all(folder_ / "cache"); }
};

constexpr int kMaxCalls = 1000;

TEST_F(TransferFaults, KilledAtAnyCallItLeavesTheOldStateOrTheNew) {
  expect_survives_kills(make_large_pack("p", 25));
}

TEST_F(TransferFaults, KilledAtAnyCallOfAPlainFoldersCopyItLeavesTheOldStateOrTheNew) {
  write("d/a", std::string(40'000, 'a'));
  write("d/sub/b", "b");
  write("d/sub/empty", "");
  expect_survives_kills(folder_ / "d");
}

TEST_F(TransferFaults, KilledAgainAndAgainItStillFinishes) {
  const fs::path pack = make_large_pack("p", 60);
  int kills = 0;
  for (; kills < kMaxCalls; ++kills) {
    const int code = in_child([&] {
      // Each kill comes a little later, so that each process continues what the previous one left.
      Watched killer([&](int now) {
        if (now == 60 + kills) ::raise(SIGKILL);
        return 0;
      });
      put_one(pack, &killer);
    });
    if (code == 0) break;
    ASSERT_EQ(code, kKilled);
  }
  EXPECT_GT(kills, 3);
  EXPECT_LT(kills, kMaxCalls);
  expect_consistent(pack, kills);
}

void TransferFaults::expect_survives_kills(const fs::path& pack) {
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    clear_cache();
    const int code = in_child([&] {
      Watched killer([&](int now) {
        if (now == call) ::raise(SIGKILL);
        return 0;
      });
      put_one(pack, &killer);
    });
    expect_consistent(pack, call);
    if (code == 0) break;
    ASSERT_EQ(code, kKilled);
  }
  EXPECT_GT(call, 30) << "the calls do not go through FileSystem";
  EXPECT_LT(call, kMaxCalls);
}

TEST_F(TransferFaults, KilledAtAnyCallWhileItReplacesADamagedCopyItServesNothingDamaged) {
  const fs::path pack = make_large_pack("p", 25);
  int call = 1;
  for (; call < kMaxCalls; ++call) {
    clear_cache();
    const PutResult first = put_one(pack);
    staging_test::flip_byte(first.path / "shard-000000.tar", 700);
    const int code = in_child([&] {
      Watched killer([&](int now) {
        if (now == call) ::raise(SIGKILL);
        return 0;
      });
      put_one(pack, &killer);
    });
    const PutResult next = put_one(pack);
    ASSERT_EQ(content_of(next.path), content_of(pack)) << "call " << call;
    ASSERT_THAT(objects(), ElementsAre(next.object)) << "call " << call;
    if (code == 0) break;
    ASSERT_EQ(code, kKilled);
  }
  EXPECT_GT(call, 30) << "the calls do not go through FileSystem";
  EXPECT_LT(call, kMaxCalls);
}

TEST_F(TransferFaults, ADiskThatFillsUpAtAnyCallIsAnErrorAndLeavesNothingIncomplete) {
  const fs::path pack = make_large_pack("p", 25);
  int failures = 0;
  for (int call = 1; call < kMaxCalls; ++call) {
    clear_cache();
    bool reached = false;
    Watched full([&](int now) {
      reached = reached || now >= call;
      return now == call ? ENOSPC : 0;
    });
    try {
      const PutResult result = put_one(pack, &full);
      EXPECT_EQ(content_of(result.path), content_of(pack));
    } catch (const Error& error) {
      ++failures;
      EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
      for (const std::string& name : objects())
        EXPECT_THAT(name, testing::Not(StartsWith("."))) << "call " << call;
    }
    expect_consistent(pack, call);
    if (!reached) break;
  }
  EXPECT_GT(failures, 30);
}

/// Lets one process wait for another.
class Pipe {
 public:
  Pipe() {
    if (::pipe2(ends_, O_CLOEXEC) != 0) fail_errno("pipe");
  }
  ~Pipe() {
    ::close(ends_[0]);
    ::close(ends_[1]);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  void tell() const {
    if (::write(ends_[1], "x", 1) != 1) fail_errno("pipe");
  }
  void wait() const {
    char byte = 0;
    if (::read(ends_[0], &byte, 1) != 1) fail_errno("pipe");
  }

 private:
  int ends_[2] = {-1, -1};
};

/// Counts the bytes that all processes read from a source.
class Counting : public SourceReads {
 public:
  Counting(std::atomic<std::uint64_t>& bytes, fs::path source, std::function<void()> before_write = {})
      : SourceReads(std::move(source), {},
                    [&bytes](const SourceRead&, std::span<std::byte> read) { bytes += read.size(); }),
        before_write_(std::move(before_write)) {}

  ssize_t call(const FileCall& call) override {
    if (call.kind == Kind::write && before_write_) std::exchange(before_write_, {})();
    return SourceReads::call(call);
  }

 private:
  std::function<void()> before_write_;
};

TEST_F(TransferFaults, SecondJobWaitsForTheFirstJobsCopy) {
  const fs::path pack = make_large_pack("p", 100);
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto& bytes = *new (shared) std::atomic<std::uint64_t>(0);
  const Pipe copying;
  const Pipe second_waits;

  const pid_t first = start_child([&] {
    Counting system(bytes, pack, [&] {
      copying.tell();
      second_waits.wait();
    });
    if (put_one(pack, &system).hit) fail("the first job found a copy");
  });
  copying.wait();
  const int second = in_child([&] {
    Counting system(bytes, pack);
    PutOptions waiting = options(&system);
    waiting.waiting = [&](const std::string&) { second_waits.tell(); };
    const PutResult result = put({pack.string()}, waiting).at(0);
    if (!result.hit || result.from_source != 0) fail("the second job copied");
    if (content_of(result.path) != content_of(pack)) fail("the second job got other data");
  });
  EXPECT_EQ(second, 0);
  EXPECT_EQ(end_of(first), 0);
  std::uint64_t size = 0;
  for (const auto& [name, content] : content_of(pack)) size += content.size();
  EXPECT_EQ(bytes, size) << "the source was not read exactly once";
  ::munmap(shared, 4096);
}

/// Eight processes put `source` at the same time and check it. Returns how many bytes they read together.
std::uint64_t read_by_eight_at_once(const fs::path& source, PutOptions options,
                                    const std::function<void(const fs::path& copy)>& check) {
  void* shared = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) fail_errno("mmap");
  auto& bytes = *new (shared) std::atomic<std::uint64_t>(0);
  std::vector<pid_t> jobs;
  for (int job = 0; job < 8; ++job) {
    jobs.push_back(start_child([&] {
      Counting system(bytes, source);
      options.file_system = &system;
      check(put({source.string()}, options).at(0).path);
    }));
  }
  for (const pid_t job : jobs) EXPECT_EQ(end_of(job), 0);
  const std::uint64_t read = bytes;
  ::munmap(shared, 4096);
  return read;
}

TEST_F(TransferFaults, EightAtOnceCopyOnce) {
  const fs::path pack = make_large_pack("p", 300);
  const std::uint64_t read = read_by_eight_at_once(pack, options(), [&](const fs::path& copy) {
    if (content_of(copy) != content_of(pack)) fail("something else");
  });
  std::uint64_t size = 0;
  for (const auto& [name, content] : content_of(pack)) size += content.size();
  EXPECT_EQ(read, size);
  EXPECT_EQ(objects().size(), 1U);
}

TEST_F(TransferFaults, EightAtOnceCopyAGigabyteOnce) {
  constexpr std::uintmax_t kGigabyte = std::uintmax_t{1} << 30;
  const fs::path folder = folder_ / "large";
  write("large/part", "x");
  fs::resize_file(folder / "part", kGigabyte);
  PutOptions usual;
  usual.cache_dir = folder_ / "cache";
  const std::uint64_t read = read_by_eight_at_once(folder, usual, [&](const fs::path& copy) {
    if (fs::file_size(copy / "part") != kGigabyte) fail("something else");
  });
  EXPECT_EQ(read, kGigabyte);
  EXPECT_EQ(objects().size(), 1U);
}

TEST_F(TransferFaults, AProcessThatWaitsContinuesTheCopyOfAKilledOne) {
  const fs::path pack = make_large_pack("p", 100);
  const Pipe copying;
  const Pipe never;
  const Pipe waits;
  const pid_t copier = start_child([&] {
    Watched stuck([&](int now) {
      if (now == 30) {
        copying.tell();
        never.wait();
      }
      return 0;
    });
    put_one(pack, &stuck);
  });
  copying.wait();
  EXPECT_THAT(objects(), ElementsAre(StartsWith(".incoming-")));
  const pid_t waiter = start_child([&] {
    PutOptions waiting = options();
    waiting.waiting = [&](const std::string&) { waits.tell(); };
    const PutResult result = put({pack.string()}, waiting).at(0);
    if (result.hit || content_of(result.path) != content_of(pack)) fail("the copy is incomplete");
  });
  waits.wait();
  ASSERT_EQ(::kill(copier, SIGKILL), 0);
  EXPECT_EQ(end_of(copier), 128 + SIGKILL);
  EXPECT_EQ(end_of(waiter), 0);
  ASSERT_EQ(objects().size(), 1U);
  EXPECT_TRUE(put_one(pack).hit);
}

}  // namespace
}  // namespace lockstep::transfer
