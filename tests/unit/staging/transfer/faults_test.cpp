// Kills put() at every system call for files, or fails the call; and several calls of put() at the same time.

#include <sys/mman.h>
#include <unistd.h>

#include <atomic>

#include "common/leaf/descriptors.h"
#include "staging/cache/store.h"
#include "staging/pack/reader.h"
#include "staging/transfer/put.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::StartsWith;

class TransferFaults : public staging_test::StagingTest {
 protected:
  PutOptions options(FileSystem* system = nullptr) const {
    PutOptions options;
    options.cache_dir = folder_ / "cache";
    options.verify = Verify::full;
    options.file_system = system;
    options.sizes.chunk_bytes = 16384;
    options.sizes.mark_bytes = 40'000;  // several marks
    options.threads = threads_;
    return options;
  }
  int threads_ = 2;
  PutResult put_one(const fs::path& source, FileSystem* system = nullptr) const {
    return put({source.string()}, options(system)).at(0);
  }
  /// Every object with a name is complete; the next call works and cleans up.
  void expect_consistent(const fs::path& pack) const {
    for (const std::string& name : objects()) {
      if (name.starts_with('.')) continue;
      EXPECT_EQ(content_of(folder_ / "cache/objects" / name / "files"), content_of(pack));
    }
    const PutResult next = put_one(pack);
    EXPECT_EQ(next.note, "");
    EXPECT_EQ(content_of(next.path), content_of(pack));
    EXPECT_THAT(objects(), ElementsAre(next.object));
  }
  EveryCall every_call_of(const fs::path& source) const {
    return {.prepare = [this] { clear_cache(); },
            .work = [this, source](FileSystem& system) { put_one(source, &system); },
            .check = [this, source] { expect_consistent(source); },
            .reads = true};
  }
  void clear_cache() const { FileSystem::real().remove_all(folder_ / "cache"); }
};

constexpr const char* kSeam = "the calls do not go through FileSystem";

TEST_F(TransferFaults, KilledAtAnyCallItLeavesTheOldStateOrTheNew) {
  EXPECT_GT(kill_at_every_call(every_call_of(make_large_pack("p", 25))), 30) << kSeam;
}

TEST_F(TransferFaults, KilledAgainAndAgainItStillFinishes) {
  const fs::path pack = make_large_pack("p", 60);
  int kills = 0;
  // Each kill comes a little later, so that each process continues what the previous one left.
  for (int code = kKilled; code == kKilled && kills < 1000; ++kills) {
    code = in_child([&] {
      KilledAt killed(60 + kills, true);
      put_one(pack, &killed);
    });
    ASSERT_TRUE(code == kKilled || code == 0) << code;
  }
  EXPECT_GT(kills, 4);
  EXPECT_LT(kills, 1000);
  expect_consistent(pack);
}

TEST_F(TransferFaults, KilledAtAnyCallWhileItReplacesADamagedCopyItServesNothingDamaged) {
  const fs::path pack = make_large_pack("p", 25);
  EveryCall every = every_call_of(pack);
  every.prepare = [&] {
    clear_cache();
    staging_test::flip_byte(put_one(pack).path / "shard-000000.tar", 700);
  };
  every.check = [&] {
    const PutResult next = put_one(pack);
    EXPECT_EQ(content_of(next.path), content_of(pack));
    EXPECT_THAT(objects(), ElementsAre(next.object));
  };
  EXPECT_GT(kill_at_every_call(every), 30) << kSeam;
}

TEST_F(TransferFaults, ADiskThatFillsUpAtAnyCallIsAnErrorAndLeavesNothingIncomplete) {
  EveryCall every = every_call_of(make_large_pack("p", 25));
  every.refused = [&](const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("No space left on device"));
    for (const std::string& name : objects()) EXPECT_THAT(name, testing::Not(StartsWith(".")));
  };
  EXPECT_GT(fail_at_every_call(every, ENOSPC), 30);
}

// With a pipe, one process waits for another.
void tell(const Pipe& pipe) {
  if (::write(pipe.write_end.get(), "x", 1) != 1) fail_errno("pipe");
}
void await(const Pipe& pipe) {
  char byte = 0;
  if (::read(pipe.read_end.get(), &byte, 1) != 1) fail_errno("pipe");
}

/// A number that this process and its children share.
struct SharedCount {
  SharedCount() : value(*new (map()) std::atomic<std::uint64_t>(0)) {}
  ~SharedCount() { ::munmap(&value, sizeof value); }
  SharedCount(const SharedCount&) = delete;
  SharedCount& operator=(const SharedCount&) = delete;
  static void* map() {
    void* memory = ::mmap(nullptr, sizeof value, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) fail_errno("mmap");
    return memory;
  }
  std::atomic<std::uint64_t>& value;
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
  SharedCount bytes;
  const Pipe copying;
  const Pipe second_waits;

  const pid_t first = start_child([&] {
    Counting system(bytes.value, pack, [&] {
      tell(copying);
      await(second_waits);
    });
    if (put_one(pack, &system).hit) fail("the first job found a copy");
  });
  await(copying);
  const int second = in_child([&] {
    Counting system(bytes.value, pack);
    PutOptions waiting = options(&system);
    waiting.on.waiting = [&](const std::string&) { tell(second_waits); };
    const PutResult result = put({pack.string()}, waiting).at(0);
    if (!result.hit || result.from_source != 0) fail("the second job copied");
    if (content_of(result.path) != content_of(pack)) fail("the second job got other data");
  });
  EXPECT_EQ(second, 0);
  EXPECT_EQ(end_of(first), 0);
  EXPECT_EQ(bytes.value, size_of(pack)) << "the source was not read exactly once";
}

TEST_F(TransferFaults, EightAtOnceCopyOnce) {
  const fs::path pack = make_large_pack("p", 300);
  SharedCount bytes;
  std::vector<pid_t> jobs;
  for (int job = 0; job < 8; ++job) {
    jobs.push_back(start_child([&] {
      Counting system(bytes.value, pack);
      if (content_of(put_one(pack, &system).path) != content_of(pack)) fail("something else");
    }));
  }
  for (const pid_t job : jobs) EXPECT_EQ(end_of(job), 0);
  EXPECT_EQ(bytes.value, size_of(pack));
  EXPECT_EQ(objects().size(), 1U);
}

}  // namespace
}  // namespace lockstep::transfer
