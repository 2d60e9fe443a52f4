// Quota and disk: which objects are evicted, which stay, and the message if none may be evicted.

#include <fcntl.h>
#include <sys/file.h>

#include "staging/cache/collect.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::HasSubstr;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

constexpr const char* kA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
constexpr const char* kB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb";
constexpr const char* kC = "cccccccccccccccccccccccccccccccc";

class CacheEviction : public CacheTest {
 protected:
  static StoreOptions quota(std::uint64_t bytes, seconds keep = seconds(0)) {
    return {.quota = bytes, .min_free = 0, .keep = keep};
  }
  static void publish_units(Store& store, const std::string& name, int units) {
    publish(store, name, std::string(kUnit * static_cast<std::size_t>(units), 'x'));
  }
  /// Makes the object look as if it was last used that long ago.
  void age(const std::string& name, seconds by) const {
    const fs::path file = cache() / "objects" / name / "object.json";
    fs::last_write_time(file, fs::file_time_type::clock::now() - by);
    const fs::path leases = cache() / "leases" / name;
    if (fs::exists(leases)) fs::last_write_time(leases, fs::file_time_type::clock::now() - by);
  }
  static auto begin(Store& store, const std::string& name, std::uint64_t bytes) {
    return [&store, name, bytes] {
      const ObjectLock lock = store.lock(name, LockKind::exclusive);
      const Incoming incoming = store.begin(name, bytes);
    };
  }
};

TEST_F(CacheEviction, TheLeastRecentlyUsedObjectIsEvictedFirst) {
  Store store(cache(), quota(3 * kUnit));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  publish_units(store, kC, 1);
  age(kA, seconds(30));
  age(kB, seconds(20));
  age(kC, seconds(10));
  store.touch(kA);
  publish_units(store, "d", 1);
  EXPECT_THAT(objects(), ElementsAre(kA, kC, "d"));
  publish_units(store, "e", 2);
  EXPECT_THAT(objects(), ElementsAre("d", "e")) << "evicted too much or too little";
  EXPECT_THAT(names(cache() / "locks"), ElementsAre(".room", "d", "e"))
      << "the lock of a removed object stays";
}

TEST_F(CacheEviction, ALastUseInTheFutureProtectsNothing) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  age(kA, -std::chrono::hours(24 * 365));
  age(kB, seconds(20));
  EXPECT_EQ(store.last_use(kA), Time());
  publish_units(store, "c", 1);
  EXPECT_THAT(objects(), ElementsAre(kB, "c"));
}

TEST_F(CacheEviction, ForeignFilesAmongTheObjectsDoNotBlockTheStore) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 1);
  write("cache/objects/notes.txt", "mine");
  write("cache/objects/folder/file", "mine too");
  EXPECT_EQ(store.usage().objects.size(), 3U);
  publish_units(store, kB, 1);
  publish_units(store, "c", 1);  // evicts
  EXPECT_TRUE(store.has("c"));
  const StoreReport report = survey(store, FileSystem::real(), true);
  for (const std::string& problem : report.problems) EXPECT_THAT(problem, HasSubstr("objects/"));
}

TEST_F(CacheEviction, ObjectsThatRunningJobsUseStayAndTheMessageSaysSo) {
  Store store(cache(), quota(3 * kUnit));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  age(kA, seconds(30));
  const Step step(store, "7.0");
  store.add_lease(kA, step.file());
  EXPECT_THAT(begin(store, kC, 3 * kUnit),
              ThrowsErrorWith("needs 29.3 KiB, quota 29.3 KiB, 9.77 KiB of it in use by running jobs"));
  EXPECT_THAT(objects(), ElementsAre(kA, kB)) << "removed although that does not help";
  publish_units(store, kC, 2);
  EXPECT_THAT(objects(), ElementsAre(kA, kC));
}

TEST_F(CacheEviction, ObjectsThatAJobsFolderLinksStay) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  age(kA, seconds(30));
  fs::create_directories(cache() / "jobs/7/data");
  fs::create_hard_link(store.files(kA) / "data", cache() / "jobs/7/data/p");
  publish_units(store, kC, 1);
  EXPECT_THAT(objects(), ElementsAre(kA, kC));
  EXPECT_THAT(begin(store, "d", 2 * kUnit), ThrowsErrorWith("in use by running jobs"));
}

TEST_F(CacheEviction, FilesThatOnlyAJobsFolderStillHoldsAreCounted) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 1);
  fs::create_directories(cache() / "jobs/7/data");
  fs::create_directories(cache() / "jobs/8/data");
  fs::create_hard_link(store.files(kA) / "data", cache() / "jobs/7/data/p");
  fs::create_hard_link(store.files(kA) / "data", cache() / "jobs/8/data/p");
  EXPECT_EQ(store.usage().jobs, 0U) << "counted twice";
  {
    const ObjectLock lock = store.lock(kA, LockKind::exclusive);
    store.remove(kA);
  }
  EXPECT_EQ(store.usage().jobs, kUnit);
  EXPECT_THAT(begin(store, kB, 2 * kUnit), ThrowsErrorWith("9.77 KiB of it in use by running jobs"));
}

TEST_F(CacheEviction, RecentlyUsedObjectsStay) {
  Store store(cache(), quota(2 * kUnit, seconds(600)));
  publish_units(store, kA, 2);
  EXPECT_THAT(begin(store, kB, kUnit), ThrowsErrorWith("19.5 KiB used less than 10 min 00 s ago"));
  age(kA, seconds(601));
  publish_units(store, kB, 1);
  EXPECT_THAT(objects(), ElementsAre(kB));
}

TEST_F(CacheEviction, TheEndOfAStepCountsAsAUse) {
  Store store(cache(), quota(2 * kUnit, seconds(600)));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  {
    const Step step(store, "7.0");
    store.add_lease(kA, step.file());
    age(kA, seconds(9000));
    age(kB, seconds(5000));
  }
  publish_units(store, kC, 1);
  EXPECT_THAT(objects(), ElementsAre(kA, kC)) << "kA was used until now, although its step began earlier";
}

TEST_F(CacheEviction, AProcessThatHangsWhileItMakesSpaceIsNotWaitedForWithoutEndOrWord) {
  std::string said;
  StoreOptions options = quota(2 * kUnit);
  options.space_timeout = std::chrono::milliseconds(300);
  options.space_notice = std::chrono::milliseconds(100);
  options.notice = [&](const std::string& line) { said += line + "\n"; };
  Store store(cache(), options);
  publish_units(store, kA, 1);
  const fs::path file = cache() / "locks/.room";
  UniqueFd hanging = open_file(file, O_RDWR);
  ASSERT_EQ(::flock(hanging.get(), LOCK_EX), 0);
  EXPECT_THAT(begin(store, kB, kUnit),
              ThrowsErrorWith("makes space in " + cache().string(), "no progress for 300 ms", file.string()));
  EXPECT_EQ(said, fmt::format("waiting for another process that makes space in {}\n", cache().string()));
  said.clear();
  options.space_notice = std::chrono::hours(1);
  Store quiet(cache(), options);
  EXPECT_THAT(begin(quiet, kB, kUnit), ThrowsErrorWith("no progress for 300 ms"));
  EXPECT_EQ(said, "") << "a short wait needs no line";
  hanging.reset();
  publish_units(store, kB, 1);
  EXPECT_THAT(objects(), ElementsAre(kA, kB));
}

TEST_F(CacheEviction, ProcessesThatWaitSeeThatSpaceIsMade) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 2);
  age(kA, seconds(30));
  fs::last_write_time(cache() / "locks/.room", fs::file_time_type::clock::now() - seconds(100));
  publish_units(store, kB, 1);
  EXPECT_LT(fs::file_time_type::clock::now() - fs::last_write_time(cache() / "locks/.room"), seconds(50));
}

TEST_F(CacheEviction, ALockedObjectStays) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 2);
  const ObjectLock reader = Store(cache()).lock(kA, LockKind::shared);
  EXPECT_FALSE(store.evict(kA, seconds(0)));
  EXPECT_THAT(begin(store, kB, kUnit), ThrowsErrorWith("needs"));
  EXPECT_THAT(objects(), ElementsAre(kA));
}

TEST_F(CacheEviction, TwoCopiesAtOnceStayBelowTheQuota) {
  Store store(cache(), quota(10 * kUnit));
  publish_units(store, kC, 4);
  const ObjectLock lock_a = store.lock(kA, LockKind::exclusive);
  const Incoming a = store.begin(kA, 6 * kUnit);
  EXPECT_THAT(objects(), ElementsAre(".incoming-" + std::string(kA), kC));
  Store other(cache(), quota(10 * kUnit));
  EXPECT_THAT(begin(other, kB, 6 * kUnit), ThrowsErrorWith("needs 58.6 KiB", "58.6 KiB being copied"));
  const ObjectLock lock_b = other.lock(kB, LockKind::exclusive);
  const Incoming b = other.begin(kB, 4 * kUnit);
  EXPECT_THAT(objects(), ElementsAre(".incoming-" + std::string(kA), ".incoming-" + std::string(kB)));
}

TEST_F(CacheEviction, ACopyWhoseSizeIsKnownLateReservesSpaceThen) {
  Store store(cache(), quota(2 * kUnit));
  publish_units(store, kA, 1);
  const ObjectLock lock = store.lock(kB, LockKind::exclusive);
  Incoming incoming = store.begin(kB, 0);
  EXPECT_THAT([&] { incoming.reserve(3 * kUnit); }, ThrowsErrorWith("needs 29.3 KiB, quota 19.5 KiB"));
  incoming.reserve(2 * kUnit);
  EXPECT_THAT(objects(), ElementsAre(".incoming-" + std::string(kB)));
}

TEST_F(CacheEviction, APartialCopyIsEvictedOnlyIfObjectsAreNotEnough) {
  Store store(cache(), quota(4 * kUnit));
  publish_units(store, kA, 1);
  {
    const ObjectLock lock = store.lock(kB, LockKind::exclusive);
    Incoming killed = store.begin(kB, 2 * kUnit);
    FileSystem::real().write_file(killed.files() / "half", std::string(kUnit, 'x'), 0600);
    killed.keep();
  }
  publish_units(store, kC, 3);
  EXPECT_THAT(objects(), ElementsAre(".incoming-" + std::string(kB), kC));
  publish_units(store, "d", 4);
  EXPECT_THAT(objects(), ElementsAre("d"));
  EXPECT_THAT(names(cache() / "locks"), ElementsAre(".room", "d"));
}

/// A disk with that much free space.
class SmallDisk : public FileSystem {
 public:
  explicit SmallDisk(std::uint64_t free) : free_(free) {}
  ssize_t call(const FileCall& call) override {
    if (call.kind != Kind::statvfs) return FileSystem::call(call);
    *call.space = {};
    call.space->f_frsize = 1;
    call.space->f_bavail = free_;
    return 0;
  }
  void set_free(std::uint64_t free) { free_ = free; }

 private:
  std::uint64_t free_;
};

TEST_F(CacheEviction, AFullDiskIsReportedBeforeAnythingIsCopied) {
  SmallDisk disk(2 * kUnit);
  Store store(cache(), quota(0), disk);
  publish_units(store, kA, 1);
  EXPECT_THAT(begin(store, kB, 4 * kUnit),
              ThrowsErrorWith("needs 39.1 KiB", "19.5 KiB free", "free space there"));
  EXPECT_THAT(objects(), ElementsAre(kA));
  const ObjectLock lock = store.lock(kB, LockKind::exclusive);
  const Incoming incoming = store.begin(kB, 3 * kUnit);
  EXPECT_THAT(objects(), ElementsAre(".incoming-" + std::string(kB))) << "nothing was evicted";
  EXPECT_THAT(begin(store, kC, kUnit), ThrowsErrorWith("0 B free")) << "the space was promised twice";
}

TEST_F(CacheEviction, ACopyLeavesTheFreeSpaceThatTheAdministratorKeeps) {
  SmallDisk disk(3 * kUnit);
  StoreOptions options = quota(0);
  options.min_free = 2 * kUnit;
  Store store(cache(), options, disk);
  EXPECT_THAT(begin(store, kB, 2 * kUnit),
              ThrowsErrorWith("needs 19.5 KiB", "29.3 KiB free, 19.5 KiB of it must stay free"));
  publish_units(store, kA, 1);
  publish_units(store, kB, 1);
  EXPECT_THAT(objects(), ElementsAre(kA, kB)) << "evicted although the space was free";
  disk.set_free(2 * kUnit);
  publish_units(store, kC, 1);
  EXPECT_THAT(objects(), ElementsAre(kB, kC)) << "the user's own idle object makes space";
  options.min_free = ~std::uint64_t{0};
  Store none(cache(), options, disk);
  EXPECT_THAT(begin(none, "d", kUnit), ThrowsErrorWith("must stay free")) << "an overflow";
}

TEST_F(CacheEviction, HugeNumbersDoNotOverflow) {
  Store store(cache(), quota(3 * kUnit));
  publish_units(store, kA, 1);
  EXPECT_THAT(begin(store, kB, ~std::uint64_t{0}), ThrowsErrorWith("needs", "quota"));
  EXPECT_THAT(objects(), ElementsAre(kA));
}

}  // namespace
}  // namespace lockstep::cache
