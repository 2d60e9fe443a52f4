// The store that an admin fills: its readers and leases, and that no user can block root or another user.

#include "staging/cache/shared.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::ElementsAre;
using testing::IsEmpty;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

class CacheShared : public CacheOfANode {
 protected:
  void SetUp() override {
    CacheOfANode::SetUp();
    if (IsSkipped()) return;
    const mode_t before = ::umask(077);
    Store store(shared());
    publish(store, "a", "for all");
    publish(store, "g", "for a group");
    share(shared(), "a", {}, FileSystem::real());
    share(shared(), "g", kTwo, FileSystem::real());
    ::umask(before);
  }
  fs::path shared() const { return cache() / "shared"; }
  static std::optional<Shared> open(const fs::path& folder) { return Shared::open(folder); }
};

TEST_F(CacheShared, UsersReadOnlyObjectsThatTheyMayRead) {
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      const std::optional<Shared> store = open(shared());
                      const std::optional<ObjectLock> found = store->find("a");
                      if (!found || staging_test::read(store->files("a") / "data") != "for all") ::_exit(2);
                      if (store->info("a").source != "/source") ::_exit(3);
                      if (store->find("g")) ::_exit(4);
                      if (store->find("missing")) ::_exit(5);
                      if (Store(store_of(kOne)).has("a")) ::_exit(6);
                    }),
            0);
  EXPECT_EQ(
      as_user(kTwo,
              [&] {
                const std::optional<Shared> store = open(shared());
                if (!store->find("g") || staging_test::read(store->files("g") / "data") != "for a group")
                  ::_exit(2);
              }),
      0);
}

TEST_F(CacheShared, AUsersLeaseProtectsAnObject) {
  const pid_t user = staging_test::start_child([&] {
    ::_exit(as_user(kOne, [&] {
      Store mine(store_of(kOne));
      const Step step(mine, "7.0");
      const std::optional<Shared> store = open(shared());
      {
        const std::optional<ObjectLock> found = store->find("a");
        store->add_lease("a", step.file());
        store->add_lease("a", step.file());
      }
      write(store_of(kOne) / "ready", "");
      wait_for([&] { return fs::exists(cache() / "end"); });
    }));
  });
  ASSERT_TRUE(wait_for([&] { return fs::exists(store_of(kOne) / "ready"); }));
  {
    Store store(shared());
    EXPECT_THAT(store.leases("a"), ElementsAre(testing::AllOf(testing::Field(&LeaseHolder::step, "7.0"),
                                                              testing::Field(&LeaseHolder::user, kOne))));
    EXPECT_FALSE(store.evict("a", seconds(0)));
    EXPECT_TRUE(store.evict("g", seconds(0)));
  }
  write(cache() / "end", "");
  EXPECT_EQ(staging_test::end_of(user), 0);
  Store store(shared());
  EXPECT_TRUE(store.evict("a", seconds(0)));
  EXPECT_THAT(names(shared() / "leases"), IsEmpty());
}

TEST_F(CacheShared, ForeignFilesAmongItsLeasesAreRemovedAndNotFollowed) {
  write("secret/x", "secret");
  ASSERT_EQ(::chmod((folder_ / "secret").c_str(), 0700), 0);
  ASSERT_EQ(as_user(kOne,
                    [&] {
                      const fs::path leases = shared() / "leases/a";
                      fs::create_directory_symlink(folder_ / "secret", leases / "1.0");
                      fs::create_directories(leases / "2.0/deep/er");
                      fs::create_directory_symlink(folder_ / "secret", leases / "2.0/deep/er/link");
                      if (::mkfifo((leases / "3.0").c_str(), 0600) != 0) ::_exit(2);
                      write(leases / "4.0", "nobody locks it");
                      if (::mkdir((shared() / "leases/other").c_str(), 0700) == 0) ::_exit(3);
                      if (::unlink((shared() / "locks/a").c_str()) == 0) ::_exit(4);
                      if (::chmod((shared() / "objects/a").c_str(), 0777) == 0) ::_exit(5);
                    }),
            0);
  Store store(shared());
  EXPECT_FALSE(store.leased("a"));
  EXPECT_THAT(names(shared() / "leases/a"), IsEmpty());
  EXPECT_EQ(staging_test::read(folder_ / "secret/x"), "secret");
  EXPECT_TRUE(store.evict("a", seconds(0)));
}

TEST_F(CacheShared, TheCallerLearnsIfNoLeaseCanBeMade) {
  Store mine(cache() / "0");
  const Step step(mine, "7.0");
  for (const int error : {EXDEV, EMLINK, ENOSPC, EPERM}) {
    staging_test::WatchedFileSystem system(
        [&](int, const FileCall& call) { return call.kind == FileCall::Kind::link ? error : 0; });
    EXPECT_THROW(Shared::open(shared(), system)->add_lease("a", step.file()), NoLease) << error;
  }
  EXPECT_THROW(open(shared())->add_lease("missing", step.file()), NoLease);
}

TEST_F(CacheShared, AnObjectThatIsBeingCheckedIsNotRemoved) {
  const std::optional<ObjectLock> found = open(shared())->find("a");
  ASSERT_TRUE(found);
  EXPECT_FALSE(Store(shared()).evict("a", seconds(0)));
  EXPECT_TRUE(Store(shared()).evict("g", seconds(0)));
}

TEST_F(CacheShared, AUserWhoTakesAllPossibleLocksBlocksNobody) {
  const auto locked = [&](const fs::path& path) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    return fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0;  // until the process ends
  };
  const pid_t user = staging_test::start_child([&] {
    ::_exit(as_user(kOne, [&] {
      (void)locked(shared() / "locks/a");
      (void)locked(shared() / "locks");
      (void)locked(shared() / "objects/a");
      if (!locked(shared() / "leases/a")) ::_exit(2);
      write(store_of(kOne) / "ready", "");
      wait_for([&] { return fs::exists(cache() / "end"); });
    }));
  });
  ASSERT_TRUE(wait_for([&] { return fs::exists(store_of(kOne) / "ready"); }));
  EXPECT_EQ(as_user(kTwo,
                    [&] {
                      if (open(shared())->find("a")) ::_exit(2);
                    }),
            0);
  // as prefetch and gc do
  EXPECT_EQ(staging_test::in_child([&] {
              ::alarm(20);
              Store store(shared());
              (void)store.lock("a", LockKind::shared);
              (void)store.lock("a", LockKind::exclusive);
              share(shared(), "a", {}, FileSystem::real());
              if (store.evict("a", seconds(0))) ::_exit(3);
              gc(store);
            }),
            0);
  write(cache() / "end", "");
  EXPECT_EQ(staging_test::end_of(user), 0);
}

TEST_F(CacheShared, PrefetchedAgainItStaysOpenForItsReaders) {
  int changes = 0;
  staging_test::WatchedFileSystem system([&](int, const FileCall& call) {
    if (call.kind == FileCall::Kind::chmod) ++changes;
    return 0;
  });
  share(shared(), "a", {}, system);
  share(shared(), "g", kTwo, system);
  EXPECT_EQ(changes, 0);
  {
    Store mine(cache() / "0");
    const Step step(mine, "7.0");
    open(shared())->add_lease("a", step.file());
    EXPECT_THAT([&] { share(shared(), "a", kTwo, FileSystem::real()); },
                ThrowsErrorWith("cannot change the permissions of object a"));
    EXPECT_EQ(mode_of(shared() / "objects/a"), 0755U);
  }
  {
    const std::optional<ObjectLock> reading = open(shared())->find("a");
    EXPECT_THAT([&] { share(shared(), "a", kTwo, FileSystem::real()); },
                ThrowsErrorWith("cannot change the permissions of object a"));
  }
  share(shared(), "a", kTwo, FileSystem::real());
  EXPECT_EQ(mode_of(shared() / "objects/a"), 0750U);
}

TEST_F(CacheShared, OnlyRootsStoreIsTrusted) {
  EXPECT_FALSE(open(cache() / "missing").has_value());
  EXPECT_EQ(as_user(kOne, [&] { Store mine(store_of(kOne)); }), 0);
  EXPECT_EQ(as_user(kTwo,
                    [&] {
                      if (open(cache() / "missing")) ::_exit(2);
                    }),
            0);
  ASSERT_EQ(::chmod(store_of(kOne).c_str(), 0755), 0);
  EXPECT_NE(as_user(kTwo, [&] { (void)open(store_of(kOne)); }), 0) << "another user's store was trusted";
  ASSERT_EQ(::chmod((shared() / "locks").c_str(), 0777), 0);
  EXPECT_THAT([&] { (void)open(shared()); }, ThrowsErrorWith("0755"));
}

}  // namespace
}  // namespace lockstep::cache
