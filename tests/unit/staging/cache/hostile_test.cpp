// Names that other users plant where the cache is about to change a mode, make a lease or take a lock; and a
// store after a reboot.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "staging/cache/collect.h"
#include "staging/cache/layout.h"
#include "staging/cache/shared.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::IsEmpty;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

using CachePlanted = CacheTest;

TEST_F(CachePlanted, AModeIsNeverChangedThroughALink) {
  write("secret", "secret");
  fs::permissions(folder_ / "secret", fs::perms::owner_all);
  fs::create_symlink(folder_ / "secret", folder_ / "link");
  EXPECT_THAT([&] { FileSystem::real().change_mode(folder_ / "link", 0666); }, ThrowsErrorWith("link"));
  EXPECT_EQ(mode_of(folder_ / "secret"), 0700U);
}

TEST_F(CachePlanted, ALinkThatReplacesAFileJustBeforeItsModeChangesIsNotFollowed) {
  write("secret", "secret");
  fs::permissions(folder_ / "secret", fs::perms::owner_read);
  write("file", "x");
  HookedFileSystem system([&](const FileCall& call) {
    if (call.kind == FileCall::Kind::chmod) {  // the file is open
      fs::rename(folder_ / "file", folder_ / "file.away");
      fs::create_symlink(folder_ / "secret", folder_ / "file");
    }
    return real_call(call);
  });
  system.change_mode(folder_ / "file", 0640);
  EXPECT_EQ(mode_of(folder_ / "secret"), 0400U);
  EXPECT_EQ(mode_of(folder_ / "file.away"), 0640U) << "the original file's mode changes";
}

TEST_F(CachePlanted, ALinkAmongAnObjectsFilesIsNeverPublished) {
  write("secret", "secret");
  fs::permissions(folder_ / "secret", fs::perms::owner_read);
  for (const char* place : {"data", "sub/data"}) {
    Store store(cache());
    const ObjectLock lock = store.lock(kName, LockKind::exclusive);
    {
      Incoming incoming = store.begin(kName, 4);
      fs::create_directories((incoming.files() / place).parent_path());
      fs::create_symlink(folder_ / "secret", incoming.files() / place);
      EXPECT_THAT([&] { incoming.publish({.name = kName, .source = "/source", .bytes = 4}); },
                  ThrowsErrorWith(place, "neither a file nor a folder"));
    }
    EXPECT_FALSE(store.has(kName));
    EXPECT_THAT(names(cache() / "objects"), IsEmpty());
    EXPECT_EQ(mode_of(folder_ / "secret"), 0400U);
    EXPECT_EQ(staging_test::read(folder_ / "secret"), "secret");
  }
}

TEST_F(CachePlanted, ALinkInPlaceOfALockIsRefused) {
  write("secret", "secret");
  Store store(cache());
  fs::create_symlink(folder_ / "secret", cache() / "locks/.room");
  {
    const ObjectLock lock = store.lock(kName, LockKind::exclusive);
    EXPECT_THAT([&] { store.begin(kName, 4); }, ThrowsErrorWith("locks/.room"));
  }
  fs::remove(cache() / "locks/.room");
  fs::remove(cache() / "locks" / kName);
  fs::create_symlink(folder_ / "secret", cache() / "locks" / kName);
  EXPECT_THAT([&] { store.lock(kName, LockKind::exclusive); }, ThrowsErrorWith(kName));
  EXPECT_EQ(staging_test::read(folder_ / "secret"), "secret");
}

// Other users may make names only in folders of leases.
class CachePlantedLease : public CacheOfANode {
 protected:
  void SetUp() override {
    CacheOfANode::SetUp();
    if (IsSkipped()) return;
    Store store(shared());
    publish(store, kName, "for all");
    share(shared(), kName, {}, FileSystem::real());
  }
  fs::path shared() const { return cache() / "shared"; }
  fs::path leases() const { return shared() / "leases" / kName; }
};

TEST_F(CachePlantedLease, AHardLinkAmongTheLeasesDoesNotChangeItsFile) {
  write("of-root", "root's");
  fs::permissions(folder_ / "of-root", fs::perms::owner_read);
  fs::create_hard_link(folder_ / "of-root",
                       leases() / "1.0");  // possible where the kernel does not protect hard links
  fs::create_directories(leases() / "2.0");
  fs::permissions(leases() / "2.0", fs::perms::none);
  fs::create_hard_link(folder_ / "of-root", leases() / "2.0/x");
  Store store(shared());
  EXPECT_FALSE(store.leased(kName));
  gc(store);
  EXPECT_TRUE(store.evict(kName, seconds(0)));
  EXPECT_EQ(staging_test::read(folder_ / "of-root"), "root's");
  EXPECT_EQ(mode_of(folder_ / "of-root"), 0400U);
  EXPECT_EQ(fs::hard_link_count(folder_ / "of-root"), 1U);
}

/// Another user takes the name of a lease just before the lease gets it, several times.
class TakesNames : public FileSystem {
 public:
  explicit TakesNames(int times) : left_(times) {}
  const std::set<std::string>& taken() const { return taken_; }
  ssize_t call(const FileCall& call) override {
    if (call.kind == Kind::link && left_-- > 0) {
      taken_.insert(fs::path(call.to).filename().string());
      const UniqueFd file = open_file(call.to, O_WRONLY | O_CREAT, 0600);
      if (::fchown(file.get(), kTwo, kTwo) != 0) fail_errno("chown");
    }
    return FileSystem::call(call);
  }

 private:
  int left_;
  std::set<std::string> taken_;
};

TEST_F(CachePlantedLease, ALeaseGetsAnotherNameIfItsNameWasJustTaken) {
  Store mine(cache() / "0");
  const Step step(mine, "7.0");
  TakesNames some(10);
  Shared::open(shared(), some)->add_lease(kName, step.file());
  EXPECT_EQ(some.taken().size(), 10U) << "a name was tried twice";
  EXPECT_EQ(fs::hard_link_count(step.file()), 2U);
  for (const std::string& name : names(leases())) EXPECT_EQ(step_of(name), "7.0");
  // If all names are taken, the step makes a separate copy; nothing worse happens.
  const Step other(mine, "7.1");
  TakesNames all(1000);
  EXPECT_THROW(Shared::open(shared(), all)->add_lease(kName, other.file()), NoLease);
}

/// The random part of a name, as other users see it in a listing.
std::string random_part(const std::string& lease) {
  const std::size_t dash = lease.find('-');
  return dash == std::string::npos ? "" : lease.substr(dash + 1);
}

TEST_F(CachePlantedLease, ALeasesNameDoesNotRevealTheNext) {
  Store mine(cache() / "0");
  std::set<std::string> seen;
  for (int n = 0; n < 64; ++n) {
    const Step step(mine, "7.0");
    TakesNames first(1);
    Shared::open(shared(), first)->add_lease(kName, step.file());
    for (const std::string& name : names(leases())) {
      if (name != "7.0") seen.insert(random_part(name));
    }
    FileSystem::real().remove_all(leases());
    fs::create_directory(leases());
    fs::remove(step.file());
  }
  EXPECT_EQ(seen.size(), 64U);
  std::set<char> first_digits;
  for (const std::string& digits : seen) {
    EXPECT_EQ(digits.size(), 16U);
    first_digits.insert(digits.front());
  }
  EXPECT_GT(first_digits.size(), 4U) << "fewer than 64 random bits";
}

// The store of a node that lost power while steps ran and copied: all names exist, but no lock is held.
TEST_F(CachePlanted, AfterARebootStaleLeasesLocksAndPartialCopiesProtectNothing) {
  const char* const half = "22222222222222222222222222222222";
  {
    Store store(cache());
    publish(store, kName, "data");
    const ObjectLock lock = store.lock(half, LockKind::exclusive);
    Incoming incoming = store.begin(half, 1000);
    FileSystem::real().write_file(incoming.files() / "data", "ha", 0600);
    incoming.keep();
    const Step step(store, "7.0");
    store.add_lease(kName, step.file());
  }
  write("cache/jobs/7/lock", "");
  write("cache/jobs/7/data/plain", "of the job that was cut off");
  write("cache/jobs/7/staged.json", "[]");
  ASSERT_THAT(names(cache() / "leases" / kName), testing::ElementsAre("7.0"));
  ASSERT_THAT(names(cache() / "leases/held"), testing::ElementsAre("7.0"));

  // The same job after a requeue: its step has the same name as before the reboot.
  Store store(cache(), {.quota = 1500, .min_free = 0, .keep = seconds(0)});
  EXPECT_FALSE(store.leased(kName));
  const Step again(store, "7.0");
  {
    const ObjectLock lock = store.lock(kName, LockKind::shared);
    store.add_lease(kName, again.file());
  }
  EXPECT_TRUE(store.leased(kName));
  {
    const ObjectLock lock = store.lock(half, LockKind::exclusive);
    Incoming incoming = store.begin(half, 1000);
    EXPECT_TRUE(incoming.resumed());
  }
  for (const char* name : {"lock", "data/plain", "data", "staged.json", ""})
    age(cache() / "jobs/7" / name, std::chrono::hours(30));
  gc(store);
  EXPECT_TRUE(fs::exists(cache() / "jobs/7")) << "a step of that job is running";
  FileSystem::real().remove_all(cache() / "leases/held");
  fs::create_directory(cache() / "leases/held");
  gc(store);
  EXPECT_FALSE(fs::exists(cache() / "jobs/7"));
  EXPECT_THAT(names(cache() / "objects"), testing::ElementsAre(kName));
}

}  // namespace
}  // namespace lockstep::cache
