// Files that gc must keep although they look abandoned, and how gc counts: conditions of gc that an intact
// store never meets.

#include "staging/cache/collect.h"

#include <sys/file.h>

#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::IsEmpty;
using CacheGc = CacheTest;
using LockKind = FileSystem::LockKind;
using std::chrono::hours;
using std::chrono::seconds;

TEST_F(CacheGc, ACopyUnderWayIsNeitherRemovedNorReported) {
  Store store(cache());
  const ObjectLock lock = store.lock("a", LockKind::exclusive);
  const Incoming copy = store.begin("a", kUnit);
  for (const bool dry_run : {true, false}) {
    const StoreReport report = gc(store, {.keep = seconds(0), .abandoned = seconds(0), .dry_run = dry_run});
    EXPECT_THAT(report.removed, IsEmpty());
    EXPECT_TRUE(fs::exists(copy.files()));
  }
}

TEST_F(CacheGc, AStepThatBeginsDuringGcKeepsItsJobsFolder) {
  Store store(cache());
  make_job("1", hours(30));
  std::optional<Step> step;
  WatchedFileSystem system([&](int, const FileCall& call) {
    // The first lock is that of the job's folder; gc has read the leases before.
    if (call.kind == FileCall::Kind::flock && !step) step.emplace(store, "1.0");
    return 0;
  });
  Store watched(cache(), system);
  EXPECT_THAT(collect(watched, system, {.keep = seconds(0)}).removed, IsEmpty());
  EXPECT_TRUE(step);
  EXPECT_TRUE(fs::exists(cache() / "jobs/1/data/x"));
}

TEST_F(CacheGc, AJobsFolderStaysForADayAfterTheLastStaging) {
  Store store(cache());
  for (const char* job : {"1", "2"}) make_job(job, hours(30));
  fs::last_write_time(cache() / "jobs/1/data", fs::file_time_type::clock::now() - hours(2));
  gc(store);
  EXPECT_THAT(names(cache() / "jobs"), ElementsAre("1"));
}

TEST_F(CacheGc, LeaseFilesAreRemovedOnceTheirStepsEndedLongAgo) {
  Store store(cache());
  write("cache/leases/held/1.0", "");
  const Step alive(store, "2.0");
  gc(store);
  EXPECT_THAT(names(cache() / "leases/held"), ElementsAre("1.0", "2.0")) << "step 1.0 has just ended";
  const CollectOptions at_once{.keep = seconds(0), .abandoned = seconds(0)};
  CollectOptions dry = at_once;
  dry.dry_run = true;
  gc(store, dry);
  EXPECT_THAT(names(cache() / "leases/held"), ElementsAre("1.0", "2.0"));
  gc(store, at_once);
  EXPECT_THAT(names(cache() / "leases/held"), ElementsAre("2.0"));
}

TEST_F(CacheGc, TheLockOfAnObjectThatIsAboutToBeMadeStays) {
  Store store(cache());
  const ObjectLock lock = store.lock("a", LockKind::exclusive);
  Store(cache()).recover();
  EXPECT_THAT(names(cache() / "locks"), testing::Contains("a"));
}

TEST_F(CacheOfANode, TheUsersQuotaDoesNotLimitTheSharedStore) {
  Store shared(cache() / "shared");
  ASSERT_EQ(::chmod((cache() / "shared").c_str(), 0755), 0);
  publish(shared, "large", std::string(3 * kUnit, 'x'));
  age(cache() / "shared/objects/large/object.json", seconds(500));
  put(kOne, "a", 3, seconds(500));
  NodeOptions options = total(0);
  options.store.quota = kUnit;
  gc_all(options);
  EXPECT_THAT(names(cache() / "shared/objects"), ElementsAre("large"));
  EXPECT_THAT(names(store_of(kOne) / "objects"), IsEmpty());
}

TEST_F(CacheOfANode, TheReserveIsLeftFree) {
  put(kOne, "a", 2, seconds(500));
  put(kTwo, "b", 2, seconds(300));
  NodeOptions options = total(5 * kUnit);
  gc_all(options);
  EXPECT_THAT(names(store_of(kOne) / "objects"), ElementsAre("a"));
  options.reserve = 2 * kUnit;
  gc_all(options);
  EXPECT_THAT(names(store_of(kOne) / "objects"), IsEmpty());
  EXPECT_THAT(names(store_of(kTwo) / "objects"), ElementsAre("b"));
}

TEST_F(CacheOfANode, ADryRunReportsWhatARealRunRemoves) {
  put(kOne, "a", 2, seconds(500));
  put(kOne, "b", 2, seconds(400));
  put(kTwo, "c", 1, seconds(300));
  put(kTwo, "d", 1, seconds(200));
  NodeOptions options = total(3 * kUnit);
  options.store.quota = 2 * kUnit;
  const auto removed = [&] {
    std::vector<std::string> all;
    for (const StoreReport& store : gc_all(options).stores) {
      for (const Removal& removal : store.removed) all.push_back(removal.name);
    }
    return all;
  };
  options.store.dry_run = true;
  const std::vector<std::string> said = removed();
  options.store.dry_run = false;
  EXPECT_EQ(removed(), said);
  EXPECT_THAT(said, ElementsAre("a", "b"));
}

}  // namespace
}  // namespace lockstep::cache
