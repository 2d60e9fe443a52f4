// Leases: what a step uses is not removed while the step lives, however it ends.

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/files.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using staging_test::CacheTest;
using staging_test::ThrowsErrorWith;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr const char* kName = "00112233445566778899aabbccddeeff";

class CacheLease : public CacheTest {};

TEST_F(CacheLease, AnObjectIsLeasedWhileTheStepLives) {
  Store store(cache());
  publish(store, kName, "data");
  EXPECT_FALSE(store.leased(kName));
  {
    const Step first(store, "7.0");
    const Step second(store, "8.0");
    store.hold(kName, first.file());
    store.hold(kName, second.file());
    store.hold(kName, second.file());
    EXPECT_TRUE(store.leased(kName));
    EXPECT_THAT(Store(cache()).leases(kName),
                ElementsAre(testing::Field(&Lease::step, "7.0"), testing::Field(&Lease::step, "8.0")));
  }
  EXPECT_FALSE(store.leased(kName));
}

TEST_F(CacheLease, AStepThatWasKilledHoldsNothing) {
  Store store(cache());
  publish(store, kName, "data");
  const int code = staging_test::in_child([&] {
    const Step step(store, "7.0");
    Store(cache()).hold(kName, step.file());
    ::kill(::getpid(), SIGKILL);
  });
  EXPECT_EQ(code, 128 + SIGKILL);
  EXPECT_THAT(names(cache() / "leases" / kName), ElementsAre("7.0"));
  EXPECT_FALSE(store.leased(kName));
  EXPECT_THAT(names(cache() / "leases" / kName), IsEmpty()) << "the stale lease is not removed";
}

TEST_F(CacheLease, AfterARebootFilesThatNobodyLockedAreNoLeases) {
  Store store(cache());
  publish(store, kName, "data");
  write("cache/leases/held/7.0", "");
  fs::create_directories(cache() / "leases" / kName);
  fs::create_hard_link(cache() / "leases/held/7.0", cache() / "leases" / kName / "7.0");
  EXPECT_FALSE(store.leased(kName));
}

TEST_F(CacheLease, ANameThatAnotherStepHadBeforeIsTakenOver) {
  Store store(cache());
  publish(store, kName, "data");
  write("cache/leases/held/7.0", "");
  fs::create_directories(cache() / "leases" / kName);
  fs::create_hard_link(cache() / "leases/held/7.0", cache() / "leases" / kName / "7.0");
  fs::remove(cache() / "leases/held/7.0");
  const Step step(store, "7.0");
  store.hold(kName, step.file());
  EXPECT_TRUE(store.leased(kName));
}

TEST_F(CacheLease, OnlyALockedFileAndAnObjectThatIsThereMakeALease) {
  Store store(cache());
  write("cache/leases/held/7.0", "");
  const Step step(store, "8.0");
  EXPECT_THAT([&] { store.hold(kName, step.file()); }, ThrowsErrorWith(kName, "not in the cache"));
  publish(store, kName, "data");
  EXPECT_THAT([&] { store.hold(kName, cache() / "leases/held/7.0"); },
              ThrowsErrorWith("held/7.0", "nobody holds"));
  fs::create_symlink(step.file(), cache() / "leases/held/9.0");
  EXPECT_THAT([&] { store.hold(kName, cache() / "leases/held/9.0"); }, ThrowsErrorWith("held/9.0"));
  EXPECT_FALSE(store.leased(kName));
}

}  // namespace
}  // namespace lockstep::cache
