// gc and status: what is removed, what never is, and that root follows no user's link.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "staging/cache/as_user.h"
#include "staging/cache/collect.h"
#include "staging/cache/ledger.h"
#include "staging/cache/node.h"
#include "staging/cache/shared.h"
#include "tests/unit/staging/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using staging_test::CacheTest;
using staging_test::ThrowsErrorWith;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

constexpr uid_t kOne = 54001;
constexpr uid_t kTwo = 54002;
constexpr std::uint64_t kUnit = 10'000;

class CacheGc : public CacheTest {
 protected:
  /// As if nothing in it had been touched for that long.
  static void age(const fs::path& path, seconds by) {
    const auto then = fs::file_time_type::clock::now() - by;
    if (fs::is_directory(fs::symlink_status(path))) {
      for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
        if (!entry.is_symlink()) fs::last_write_time(entry, then);
      }
    }
    fs::last_write_time(path, then);
  }
  void make_job(const std::string& job, seconds age_of_it) const {
    write(fs::path("cache/jobs") / job / "lock", "");
    write(fs::path("cache/jobs") / job / "data/x", "data");
    age(cache() / "jobs" / job, age_of_it);
  }
  static StoreReport gc(Store& store, const CollectOptions& options = {.keep = seconds(0)}) {
    return collect(store, FileSystem::real(), options);
  }
};

TEST_F(CacheGc, FoldersOfJobsThatEndedLongAgoGoAndOfLiveOnesNever) {
  Store store(cache());
  for (const char* job : {"1", "2", "3", "4"}) make_job(job, std::chrono::hours(30));
  make_job("5", std::chrono::hours(2));
  fs::create_symlink(folder_ / "elsewhere", cache() / "jobs/1/data/link");
  fs::last_write_time(cache() / "jobs/1/data", fs::file_time_type::clock::now() - std::chrono::hours(30));
  write("elsewhere/kept", "x");
  write("cache/leases/held/1.0", "");  // of a step that has ended
  const Step alive(store, "2.4294967290");
  const UniqueFd working = open_file(cache() / "jobs/3/lock", O_RDWR);
  ASSERT_EQ(::flock(working.get(), LOCK_EX), 0);
  fs::create_directories(cache() / "jobs/.removed-9/data");
  const StoreReport dry = gc(store, {.keep = seconds(0), .dry_run = true});
  EXPECT_EQ(dry.removed.size(), 3U);
  EXPECT_EQ(names(cache() / "jobs").size(), 6U);
  const StoreReport report = gc(store);
  EXPECT_THAT(names(cache() / "jobs"), ElementsAre("2", "3", "5"));
  EXPECT_EQ(report.removed.size(), 3U);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_EQ(report.jobs, 3U);
  EXPECT_TRUE(fs::exists(folder_ / "elsewhere/kept"));
}

TEST_F(CacheGc, TheQuotaIsKeptByRemovingWhatIsIdle) {
  Store store(cache());
  for (const char* name : {"a", "b", "c"}) publish(store, name, std::string(kUnit, 'x'));
  age(cache() / "objects/a/object.json", seconds(100));
  age(cache() / "objects/b/object.json", seconds(50));
  const Step step(store, "7.0");
  store.hold("a", step.file());
  age(cache() / "objects/a/object.json", seconds(100));
  age(cache() / "leases/a", seconds(100));
  const StoreReport report = gc(store, {.quota = 2 * kUnit + 2000, .keep = seconds(0)});
  EXPECT_THAT(names(cache() / "objects"), ElementsAre("a", "c"));
  ASSERT_EQ(report.removed.size(), 1U);
  EXPECT_EQ(report.removed[0].source, "/source");
  EXPECT_THAT(report.removed[0].why, HasSubstr("over the quota of"));
  EXPECT_EQ(report.bytes_in_use(), kUnit);
  const StoreReport over = gc(store, {.quota = kUnit / 2, .keep = seconds(0)});
  EXPECT_THAT(names(cache() / "objects"), ElementsAre("a"));
  EXPECT_THAT(over.problems, ElementsAre(HasSubstr("over the quota")));
}

TEST_F(CacheGc, SizesAreMeasuredAndNotBelieved) {
  Store store(cache());
  publish(store, "a", std::string(kUnit, 'x'));
  const fs::path description = cache() / "objects/a/object.json";
  fs::permissions(description, fs::perms::owner_all);
  write("cache/objects/a/object.json", R"({"source":"/s","bytes":99999999999,"created":0})");
  const fs::path sparse = cache() / "objects/a/files/sparse";
  fs::permissions(cache() / "objects/a/files", fs::perms::owner_all);
  write("cache/objects/a/files/sparse", "");
  fs::resize_file(sparse, std::uint64_t{1} << 40U);
  EXPECT_EQ(survey(store, FileSystem::real(), true).bytes(), kUnit);
}

TEST_F(CacheGc, AReportSurvivesItsWayBetweenProcesses) {
  Store store(cache());
  publish(store, "a", "data");
  const Step step(store, "7.0");
  store.hold("a", step.file());
  make_job("1", std::chrono::hours(30));
  const Hold lock = store.lock("b", LockKind::exclusive);
  const Incoming copy = store.begin("b", kUnit);
  const StoreReport report = gc(store);
  const auto again = nlohmann::json(report).get<StoreReport>();
  EXPECT_EQ(nlohmann::json(again), nlohmann::json(report));
  EXPECT_EQ(again.objects.at(0).leases.at(0).step, "7.0");
  EXPECT_EQ(again.bytes_copying(), kUnit);
  EXPECT_EQ(again.removed.size(), 1U);
}

class CacheOfANode : public CacheGc {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root to be several users";
    ASSERT_EQ(::chmod(folder_.c_str(), 0755), 0);
    fs::create_directory(cache());
    ASSERT_EQ(::chmod(cache().c_str(), 0755), 0);
    for (const uid_t user : {kOne, kTwo}) {
      fs::create_directory(store_of(user));
      ASSERT_EQ(::chown(store_of(user).c_str(), user, user), 0);
      ASSERT_EQ(::chmod(store_of(user).c_str(), 0700), 0);
    }
  }
  fs::path store_of(uid_t user) const { return cache() / std::to_string(user); }
  void put(uid_t user, const std::string& name, std::uint64_t units, seconds used_ago) const {
    ASSERT_EQ(as_user(user,
                      [&] {
                        Store store(store_of(user));
                        publish(store, name, std::string(units * kUnit, 'x'));
                      }),
              0);
    age(store_of(user) / "objects" / name / "object.json", used_ago);
  }
  static NodeOptions total(std::uint64_t bytes) {
    NodeOptions options;
    options.store.keep = seconds(10);
    options.total = bytes;
    return options;
  }
  NodeReport gc_all(const NodeOptions& options) const {
    return collect_node(cache(), FileSystem::real(), options);
  }
};

TEST_F(CacheOfANode, TheLeastRecentlyUsedOfAllUsersGoesFirst) {
  put(kOne, "a", 2, seconds(500));
  put(kOne, "b", 2, seconds(300));
  put(kTwo, "c", 2, seconds(400));
  put(kTwo, "d", 2, seconds(1));
  NodeOptions options = total(5 * kUnit + 5000);
  options.store.dry_run = true;
  EXPECT_EQ(gc_all(options).stores.at(0).removed.size(), 1U);
  EXPECT_TRUE(fs::exists(store_of(kOne) / "objects/a"));
  options.store.dry_run = false;
  const NodeReport report = gc_all(options);
  EXPECT_THAT(report.problems, IsEmpty());
  EXPECT_THAT(names(store_of(kOne) / "objects"), ElementsAre("b"));
  EXPECT_THAT(names(store_of(kTwo) / "objects"), ElementsAre("d"));
  EXPECT_EQ(report.bytes(), 4 * kUnit);
  const Ledger ledger(cache() / "claims", FileSystem::real());
  EXPECT_EQ(ledger.claimed(kOne), 2 * kUnit);
  EXPECT_EQ(ledger.claimed(kTwo), 2 * kUnit);
  EXPECT_THAT(gc_all(total(kUnit)).problems, Contains(HasSubstr("over the node's total")))
      << "what was used just now stays";
}

TEST_F(CacheOfANode, ALieInTheLedgerIsSetRight) {
  put(kOne, "a", 3, seconds(500));
  Ledger::prepare(cache() / "claims", kOne);
  write(cache() / "claims" / std::to_string(kOne), "                   1\n");
  write(cache() / "claims/54777", "                   1\n");
  gc_all(total(100 * kUnit));
  EXPECT_EQ(Ledger(cache() / "claims", FileSystem::real()).claimed(kOne), 3 * kUnit);
  EXPECT_FALSE(fs::exists(cache() / "claims/54777")) << "nobody's claim";
}

TEST_F(CacheOfANode, RootFollowsNoUsersLink) {
  // root's, which users would like to see removed, opened or handed over
  write("secret/objects/a/files/x", "secret");
  write("secret/leases/held/1.0", "");
  const auto before = staging_test::content_of(folder_ / "secret");
  const auto long_ago = std::chrono::hours(100);
  for (const char* planted :
       {"objects", "locks", "leases", "jobs", "objects/a", "objects/a/files", "objects/.removed-a",
        "objects/.incoming-a", "leases/a", "leases/held", "jobs/1", "jobs/1/data", "locks/a", "locks/.room",
        "objects/a/object.json", "leases/a/1.0", "leases/held/1.0", "jobs/1/lock"}) {
    SCOPED_TRACE(planted);
    FileSystem::real().remove_all(store_of(kOne));
    fs::create_directories(store_of(kOne) / fs::path(planted).parent_path());
    fs::create_directory_symlink(folder_ / "secret", store_of(kOne) / planted);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(store_of(kOne))) {
      ASSERT_EQ(::lchown(entry.path().c_str(), kOne, kOne), 0);
      if (!entry.is_symlink()) fs::last_write_time(entry, fs::file_time_type::clock::now() - long_ago);
    }
    ASSERT_EQ(::lchown(store_of(kOne).c_str(), kOne, kOne), 0);
    gc_all(total(1));
    survey_node(cache(), FileSystem::real(), {});
    EXPECT_EQ(staging_test::content_of(folder_ / "secret"), before);
    struct stat status {};
    ASSERT_EQ(::stat((folder_ / "secret").c_str(), &status), 0);
    EXPECT_EQ(status.st_uid, 0U);
    EXPECT_EQ(status.st_mode & 0777, 0755U);
  }
}

TEST_F(CacheOfANode, AStoreThatIsALinkOrAnothersIsLeftAlone) {
  write("secret/objects/a/files/x", "secret");
  fs::create_directory_symlink(folder_ / "secret", cache() / "54003");
  fs::create_directory(cache() / "54004");
  ASSERT_EQ(::chown((cache() / "54004").c_str(), kOne, kOne), 0);
  fs::create_directory_symlink(folder_ / "secret", cache() / "shared");
  const NodeReport report = gc_all(total(1));
  EXPECT_EQ(report.problems.size(), 3U);
  EXPECT_THAT(report.problems, Contains(HasSubstr("54004 belongs to user 54001 and is left alone")));
  EXPECT_TRUE(fs::exists(folder_ / "secret/objects/a/files/x"));
  EXPECT_THAT(names(cache() / "54004"), IsEmpty());
  ASSERT_EQ(::chmod(cache().c_str(), 0777), 0);
  EXPECT_THAT([&] { gc_all(total(1)); }, ThrowsErrorWith("must be root's, 0755"));
}

TEST_F(CacheOfANode, OneUsersTroubleDoesNotKeepTheOthersFromBeingServed) {
  put(kTwo, "c", 2, seconds(400));
  write(store_of(kOne) / "objects", "a file where a folder should be");
  const NodeReport report = gc_all(total(kUnit));
  EXPECT_THAT(report.problems, Contains(HasSubstr(store_of(kOne).string())));
  EXPECT_THAT(names(store_of(kTwo) / "objects"), IsEmpty());
}

TEST_F(CacheOfANode, AUserWhoStopsTheProcessHoldsUpNobody) {
  EXPECT_THAT(
      [] {
        cache::as_user(kOne, kOne, seconds(0), [] {
          ::pause();
          return nlohmann::json();
        });
      },
      ThrowsErrorWith("gave up"));
  EXPECT_THAT(
      [] {
        cache::as_user(kOne, kOne, seconds(20), [] {
          ::kill(::getpid(), SIGKILL);
          return nlohmann::json();
        });
      },
      ThrowsErrorWith("was killed (9)"));
  EXPECT_THAT([] { cache::as_user(kOne, kOne, seconds(20), []() -> nlohmann::json { fail("no luck"); }); },
              ThrowsErrorWith("no luck"));
}

TEST_F(CacheOfANode, InAUsersStoreRootIsThatUserForGood) {
  const nlohmann::json ids = cache::as_user(kOne, kTwo, seconds(20), [] {
    uid_t real = 0, effective = 0, saved = 0;
    ::getresuid(&real, &effective, &saved);
    return nlohmann::json{real, effective, saved, ::getegid(), ::getgroups(0, nullptr), ::setuid(0)};
  });
  EXPECT_EQ(ids, (nlohmann::json{kOne, kOne, kOne, kTwo, 0, -1}));
}

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

TEST_F(CacheShared, UsersReadWhatTheyMay) {
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      const std::optional<Shared> store = open(shared());
                      const std::optional<Hold> found = store->find("a");
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

TEST_F(CacheShared, AUsersLeaseKeepsAnObject) {
  const pid_t user = ::fork();
  if (user == 0) {
    ::_exit(as_user(kOne, [&] {
      Store mine(store_of(kOne));
      const Step step(mine, "7.0");
      const std::optional<Shared> store = open(shared());
      {
        const std::optional<Hold> found = store->find("a");
        store->hold("a", step.file());
        store->hold("a", step.file());
      }
      write(store_of(kOne) / "ready", "");
      while (!fs::exists(cache() / "end")) ::usleep(1000);
    }));
  }
  while (!fs::exists(store_of(kOne) / "ready")) ::usleep(1000);
  {
    Store store(shared());
    EXPECT_THAT(store.leases("a"), ElementsAre(testing::AllOf(testing::Field(&Lease::step, "7.0"),
                                                              testing::Field(&Lease::user, kOne))));
    EXPECT_FALSE(store.evict("a", seconds(0)));
    EXPECT_TRUE(store.evict("g", seconds(0)));
  }
  write(cache() / "end", "");
  int status = 0;
  ::waitpid(user, &status, 0);
  EXPECT_EQ(status, 0);
  Store store(shared());
  EXPECT_TRUE(store.evict("a", seconds(0)));
  EXPECT_THAT(names(shared() / "leases"), IsEmpty());
}

TEST_F(CacheShared, WhatUsersPlantAmongItsLeasesIsRemovedAndLeadsNowhere) {
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

TEST_F(CacheShared, ANameThatAnotherTookIsNoHindrance) {
  ASSERT_EQ(as_user(kTwo, [&] { write(shared() / "leases/a/7.0", "mine"); }), 0);
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      Store mine(store_of(kOne));
                      const Step step(mine, "7.0");
                      const std::optional<Shared> store = open(shared());
                      const std::optional<Hold> found = store->find("a");
                      store->hold("a", step.file());
                      if (!fs::exists(shared() / "leases/a/7.0-1")) ::_exit(2);
                    }),
            0);
}

TEST_F(CacheShared, AUserWhoLocksItExclusivelyHoldsUpNobody) {
  const UniqueFd lock = open_file(shared() / "locks/a", O_RDONLY);
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      if (open(shared())->find("a")) ::_exit(2);
                    }),
            0);
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
  EXPECT_THAT([&] { (void)open(shared()); }, ThrowsErrorWith("must be root's, 0755"));
}

}  // namespace
}  // namespace lockstep::cache
