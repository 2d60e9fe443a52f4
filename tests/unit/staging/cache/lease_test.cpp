// Leases protect the objects that a step uses for as long as the step lives, however it ends.

#include <fcntl.h>
#include <sched.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>

#include "common/files.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::IsEmpty;

using CacheLease = CacheTest;

TEST_F(CacheLease, AnObjectIsLeasedWhileTheStepLives) {
  Store store(cache());
  publish(store, kName, "data");
  EXPECT_FALSE(store.leased(kName));
  {
    const Step first(store, "7.0");
    const Step second(store, "8.0");
    store.add_lease(kName, first.file());
    store.add_lease(kName, second.file());
    store.add_lease(kName, second.file());
    EXPECT_TRUE(store.leased(kName));
    EXPECT_THAT(Store(cache()).leases(kName), ElementsAre(testing::Field(&LeaseHolder::step, "7.0"),
                                                          testing::Field(&LeaseHolder::step, "8.0")));
  }
  EXPECT_FALSE(store.leased(kName));
}

TEST_F(CacheLease, AKilledStepProtectsNothing) {
  Store store(cache());
  publish(store, kName, "data");
  const int code = staging_test::in_child([&] {
    const Step step(store, "7.0");
    Store(cache()).add_lease(kName, step.file());
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  EXPECT_THAT(names(cache() / "leases" / kName), ElementsAre("7.0"));
  EXPECT_FALSE(store.leased(kName));
  EXPECT_THAT(names(cache() / "leases" / kName), IsEmpty()) << "the stale lease is not removed";
}

TEST_F(CacheLease, TheStaleLeaseOfAnEarlierStepOfTheSameNameIsReplaced) {
  Store store(cache());
  publish(store, kName, "data");
  write("cache/leases/held/7.0", "");
  fs::create_directories(cache() / "leases" / kName);
  fs::create_hard_link(cache() / "leases/held/7.0", cache() / "leases" / kName / "7.0");
  fs::remove(cache() / "leases/held/7.0");
  const Step step(store, "7.0");
  store.add_lease(kName, step.file());
  EXPECT_TRUE(store.leased(kName));
}

TEST_F(CacheLease, ALeaseNeedsALockedFileAndAnExistingObject) {
  Store store(cache());
  write("cache/leases/held/7.0", "");
  const Step step(store, "8.0");
  EXPECT_THAT([&] { store.add_lease(kName, step.file()); }, ThrowsErrorWith(kName, "not in the cache"));
  publish(store, kName, "data");
  EXPECT_THAT([&] { store.add_lease(kName, cache() / "leases/held/7.0"); },
              ThrowsErrorWith("held/7.0", "nobody holds"));
  fs::create_symlink(step.file(), cache() / "leases/held/9.0");
  EXPECT_THAT([&] { store.add_lease(kName, cache() / "leases/held/9.0"); }, ThrowsErrorWith("held/9.0"));
  EXPECT_FALSE(store.leased(kName));
}

TEST_F(CacheLease, AWarmHitCostsTheSameForAnyNumberOfFiles) {
  const auto calls_for = [&](int files) {
    const std::string name = fmt::format("object-of-{}", files);
    Store store(cache());
    {
      const ObjectLock lock = store.lock(name, FileSystem::LockKind::exclusive);
      Incoming incoming = store.begin(name, 4);
      ObjectInfo info{.name = name, .source = "/source", .bytes = 4};
      for (int f = 0; f < files; ++f) {
        write(incoming.files() / std::to_string(f), "");
        info.files.push_back({.name = std::to_string(f), .size = 0, .xxh3 = std::string(32, '0')});
      }
      incoming.publish(info);
    }
    const Step step(store, "7.0");
    staging_test::WatchedFileSystem system([](int, const FileCall&) { return 0; });
    Store mine(cache(), system);
    mine.recover();
    const ObjectLock lock = mine.lock(name, FileSystem::LockKind::shared);
    EXPECT_TRUE(mine.has(name));
    EXPECT_EQ(mine.info(name).files.size(), static_cast<std::size_t>(files));
    mine.touch(name);
    mine.add_lease(name, step.file());
    return system.calls();
  };
  const int few = calls_for(1);
  EXPECT_EQ(calls_for(1000), few);
  EXPECT_LT(few, 20);
}

// Evicts, and lets another process do something after every single call of the eviction.
TEST_F(CacheLease, NoEvictionHappensBetweenCheckAndLease) {
  const auto take = [&](bool& got) {
    // In a separate process, as in another job.
    const int code = staging_test::in_child([&] {
      Store mine(cache());
      const Step step(mine, "7.0");
      const UniqueFd lock = open_file(cache() / "locks" / kName, O_RDWR | O_CREAT, 0600);
      if (::flock(lock.get(), LOCK_SH | LOCK_NB) != 0) ::_exit(3);  // being evicted
      struct stat named {};
      if (::stat((cache() / "locks" / kName).c_str(), &named) != 0 || !mine.has(kName)) ::_exit(3);
      mine.add_lease(kName, step.file());
      ::_exit(Store(cache()).evict(kName, std::chrono::seconds(0)) || !mine.has(kName) ? 4 : 0);
    });
    ASSERT_TRUE(code == 0 || code == 3) << code;
    got = code == 0;
  };
  int taken = 0;
  int late = 0;
  bool evicted = false;
  for (int call = 1; call < 1000; ++call) {
    {
      Store store(cache());
      if (!store.has(kName)) publish(store, kName, "data");
    }
    bool got = false;
    staging_test::WatchedFileSystem system([&](int now, const FileCall&) {
      if (now == call) take(got);
      return 0;
    });
    Store store(cache(), system);
    const bool reached_before = system.calls() >= call;
    evicted = store.evict(kName, std::chrono::seconds(0));
    if (system.calls() < call) break;
    if (!reached_before) ++(got ? taken : late);
    EXPECT_TRUE(evicted) << "the step that took the lease has ended";
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(late, 3) << "the lease never came too late";
}

}  // namespace
}  // namespace lockstep::cache
