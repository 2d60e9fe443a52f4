// gc and status: gc removes the right files and no others, and root follows no user's link.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "staging/cache/collect.h"
#include "staging/cache/node.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using CacheGc = CacheTest;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

TEST_F(CacheGc, OnlyFoldersOfJobsThatEndedLongAgoAreRemoved) {
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

TEST_F(CacheGc, IdleObjectsAreEvictedDownToTheQuota) {
  Store store(cache());
  for (const char* name : {"a", "b", "c"}) publish(store, name, std::string(kUnit, 'x'));
  age(cache() / "objects/a/object.json", seconds(100));
  age(cache() / "objects/b/object.json", seconds(50));
  const Step step(store, "7.0");
  store.add_lease("a", step.file());
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

TEST_F(CacheGc, SizesAreMeasuredNotTakenFromDescriptions) {
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

TEST_F(CacheGc, AReportPassesBetweenProcessesUnchanged) {
  Store store(cache());
  publish(store, "a", "data");
  const Step step(store, "7.0");
  store.add_lease("a", step.file());
  make_job("1", std::chrono::hours(30));
  const ObjectLock lock = store.lock("b", LockKind::exclusive);
  const Incoming copy = store.begin("b", kUnit);
  const StoreReport report = gc(store);
  const auto again = nlohmann::json(report).get<StoreReport>();
  EXPECT_EQ(nlohmann::json(again), nlohmann::json(report));
  EXPECT_EQ(again.objects.at(0).leases.at(0).step, "7.0");
  EXPECT_EQ(again.bytes_copying(), kUnit);
  EXPECT_EQ(again.removed.size(), 1U);
}

TEST_F(CacheOfANode, TheLeastRecentlyUsedObjectOfAllUsersIsEvictedFirst) {
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
  EXPECT_THAT(gc_all(total(kUnit)).problems, Contains(HasSubstr("over the node's total")))
      << "recently used objects stay";
}

TEST_F(CacheOfANode, RootFollowsNoUsersLink) {
  // root's files, which a hostile user wants to be removed, opened or given away
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

// A folder of root that users may not enter: they cannot even stat a path through a link to it.
TEST_F(CacheOfANode, ALinkToRootsFolderIsRemovedWhereverAUserPutsIt) {
  write("secret/kept", "root's");
  fs::create_directories(folder_ / "secret/files");
  fs::permissions(folder_ / "secret", fs::perms::owner_all);
  for (const char* planted : {"objects/a", "objects/.removed-a", "objects/.incoming-a", "objects/a/files",
                              "jobs/1", "leases/old"}) {
    SCOPED_TRACE(planted);
    FileSystem::real().remove_all(store_of(kOne));
    fs::create_directory(store_of(kOne));
    ASSERT_EQ(::chown(store_of(kOne).c_str(), kOne, kOne), 0);
    put(kOne, "old", 1, seconds(500));
    fs::create_directories((store_of(kOne) / planted).parent_path());
    fs::create_directory_symlink(folder_ / "secret", store_of(kOne) / planted);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(store_of(kOne))) {
      ASSERT_EQ(::lchown(entry.path().c_str(), kOne, kOne), 0);
      FileSystem::real().set_modified(entry.path(), 1'000'000'000);
    }
    const NodeReport report = gc_all(total(1));
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(names(store_of(kOne) / "objects"), IsEmpty());
    EXPECT_FALSE(fs::exists(fs::symlink_status(store_of(kOne) / "jobs/1")));
    EXPECT_EQ(staging_test::read(folder_ / "secret/kept"), "root's");
  }
}

TEST_F(CacheOfANode, StatusNamesALinkInAnObjectsPlaceAndCountsTheRest) {
  fs::create_directory(folder_ / "secret");
  fs::permissions(folder_ / "secret", fs::perms::owner_all);
  put(kOne, "old", 1, seconds(500));
  fs::create_directory_symlink(folder_ / "secret", store_of(kOne) / "objects/a");
  const NodeReport report = survey_node(cache(), FileSystem::real(), {});
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.stores.size(), 2U);
  EXPECT_EQ(report.stores.at(0).bytes(), kUnit);
  EXPECT_THAT(report.stores.at(0).problems, Contains(HasSubstr("objects/a is not a folder")));
}

TEST_F(CacheOfANode, AStoreThatIsALinkOrBelongsToAnotherUserIsSkipped) {
  write("secret/objects/a/files/x", "secret");
  fs::create_directory_symlink(folder_ / "secret", cache() / "54003");
  fs::create_directory(cache() / "54004");
  ASSERT_EQ(::chown((cache() / "54004").c_str(), kOne, kOne), 0);
  fs::create_directory_symlink(folder_ / "secret", cache() / "shared");
  const NodeReport report = gc_all(total(1));
  EXPECT_EQ(report.problems.size(), 3U);
  EXPECT_THAT(report.problems,
              Contains(HasSubstr("54004 belongs to user 54001, not to the user of its name")));
  EXPECT_TRUE(fs::exists(folder_ / "secret/objects/a/files/x"));
  EXPECT_THAT(names(cache() / "54004"), IsEmpty());
  ASSERT_EQ(::chmod(cache().c_str(), 0777), 0);
  EXPECT_THAT([&] { gc_all(total(1)); }, ThrowsErrorWith("must be root's with mode 0755"));
}

TEST_F(CacheOfANode, AProblemInOneStoreDoesNotStopTheOthers) {
  put(kTwo, "c", 2, seconds(400));
  write(store_of(kOne) / "objects", "a file where a folder should be");
  const NodeReport report = gc_all(total(kUnit));
  EXPECT_THAT(report.problems, Contains(HasSubstr(store_of(kOne).string())));
  EXPECT_THAT(names(store_of(kTwo) / "objects"), IsEmpty());
}

// cp into a store counts, and does not stay.
TEST_F(CacheGc, WhatIsNotPartOfAStoreIsCountedAndRemoved) {
  Store store(cache());
  publish(store, "a", std::string(kUnit, 'x'));
  fs::permissions(cache() / "objects/a", fs::perms::owner_all);
  for (const char* name : {"results/1", "objects/a/mine", "jobs/.mine"})
    write(fs::path("cache") / name, std::string(5 * kUnit, 'm'));
  write("cache/bandwidth", "");
  make_job("7", seconds(1));
  StoreReport report = gc(store, {.quota = 17 * kUnit, .keep = seconds(0)});
  EXPECT_EQ(report.foreign_bytes, 15 * kUnit);
  EXPECT_TRUE(store.has("a"));
  report = gc(store, {.quota = 15 * kUnit, .keep = seconds(0)});
  EXPECT_FALSE(store.has("a")) << "the user's own files take its space";
  report = gc(store, {.keep = seconds(0), .abandoned = seconds(-1)});
  EXPECT_EQ(report.foreign_bytes, 0U);
  EXPECT_THAT(names(cache()), testing::ElementsAre("bandwidth", "jobs", "leases", "locks", "objects"));
}

/// Behaves as a file system that a user has mounted: it refuses root or never answers.
HookedFileSystem mounted_by_a_user(const fs::path& at, bool answers) {
  return HookedFileSystem([=](const FileCall& call) {
    if (call.kind != FileCall::Kind::lstat || call.path != at || ::geteuid() != 0) return real_call(call);
    while (!answers) ::pause();
    return failed_call(EACCES);
  });
}

TEST_F(CacheOfANode, AStoreThatRootCannotReadDoesNotStopTheOthers) {
  put(kTwo, "c", 2, seconds(400));
  for (const bool answers : {true, false}) {
    HookedFileSystem system = mounted_by_a_user(store_of(kOne), answers);
    NodeOptions options = total(100 * kUnit);
    options.store_timeout = seconds(1);
    EXPECT_EQ(staging_test::in_child([&] {
                ::alarm(60);
                const NodeReport survey = survey_node(cache(), system, options);
                if (survey.problems.size() != 1 || survey.stores.size() != 1) ::_exit(2);
                const NodeReport report = collect_node(cache(), system, options);
                if (report.problems.size() != 1 || report.stores.size() != 1) ::_exit(3);
                if (!report.problems.at(0).starts_with(store_of(kOne).string())) ::_exit(4);
                if (report.stores.at(0).bytes() != 2 * kUnit) ::_exit(5);
              }),
              0)
        << answers;
  }
}

TEST_F(CacheOfANode, InvalidDescriptionsAreReportedAndDoNoHarm) {
  for (const char* name : {"fifo", "huge", "folder", "link", "loud"}) put(kOne, name, 1, seconds(1));
  write("secret", R"({"source":"secret","bytes":1,"created":0})");
  ASSERT_EQ(as_user(kOne,
                    [&] {
                      const auto description = [&](const char* name) {
                        return store_of(kOne) / "objects" / name / "object.json";
                      };
                      for (const char* name : {"fifo", "huge", "folder", "link", "loud"})
                        fs::remove(description(name));
                      if (::mkfifo(description("fifo").c_str(), 0600) != 0) ::_exit(2);
                      write(description("huge"), "{");
                      fs::resize_file(description("huge"), std::uint64_t{1} << 33U);
                      fs::create_directory(description("folder"));
                      fs::create_symlink(folder_ / "secret", description("link"));
                      write(description("loud"), R"({"source":"/\u001b[2J\u009b\n\u00e9)" +
                                                     std::string(20'000, 'x') +
                                                     R"(","bytes":1,"created":0,"files":[{"name":)");
                    }),
            0);
  NodeOptions options;
  options.store_timeout = seconds(20);
  const NodeReport report = survey_node(cache(), FileSystem::real(), options);
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.stores.size(), 2U);
  const StoreReport& store = report.stores.at(0);
  EXPECT_THAT(store.problems, testing::UnorderedElementsAre(
                                  HasSubstr("fifo/object.json is damaged: it is not a file"),
                                  HasSubstr("huge/object.json is damaged"),
                                  HasSubstr("folder/object.json is damaged: it is not a file"),
                                  HasSubstr("link/object.json: Too many levels of symbolic links")));
  for (const ObjectReport& object : store.objects) {
    if (object.object.info.name != "loud") continue;
    const std::string& source = object.object.info.source;
    EXPECT_THAT(source, testing::StartsWith("/\\x1b[2J\\u009b\\x0a\u00e9xxx"));
    EXPECT_LE(source.size(), 5000U);
  }
}

TEST_F(CacheOfANode, AfterTheBudgetSlowStoresGetLessTime) {
  put(kTwo, "c", 2, seconds(400));
  HookedFileSystem system = mounted_by_a_user(store_of(kOne), false);
  NodeOptions options = total(100 * kUnit);
  options.store_timeout = seconds(1);
  options.budget = seconds(0);
  EXPECT_EQ(collect_node(cache(), system, options).stores.size(), 1U);
}

TEST_F(CacheOfANode, AUserWhoStopsTheProcessDelaysOnlyTheirOwnStore) {
  const auto user_does = [](seconds timeout, void (*work)()) {
    return [=] {
      cache::as_user(kOne, kOne, timeout, [=] {
        work();
        return nlohmann::json();
      });
    };
  };
  EXPECT_THAT(user_does(seconds(0), [] { ::pause(); }), ThrowsErrorWith("the process was stopped"));
  EXPECT_THAT(
      user_does(seconds(1), [] { ::kill(::getpid(), SIGSTOP); }),  // any process of the user may do this
      ThrowsErrorWith("the process was stopped"));
  EXPECT_THAT(user_does(seconds(20), [] { ::kill(::getpid(), SIGKILL); }),
              ThrowsErrorWith("was killed by signal 9"));
  EXPECT_THAT(user_does(seconds(20), [] { fail("no luck"); }), ThrowsErrorWith("no luck"));
}

// Its files are read-only already, which does not stop root, but does stop their user.
TEST_F(CacheOfANode, ACopyKilledWhileItWasPublishedIsContinuedByItsUser) {
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      WatchedFileSystem killer([](int, const FileCall& call) {
                        if (call.kind == FileCall::Kind::rename) ::_exit(7);
                        return 0;
                      });
                      Store store(store_of(kOne), killer);
                      publish(store, "a", "data");
                    }),
            7);
  EXPECT_EQ(as_user(kOne,
                    [&] {
                      Store store(store_of(kOne));
                      const ObjectLock lock = store.lock("a", LockKind::exclusive);
                      Incoming incoming = store.begin("a", 8);
                      if (!incoming.resumed()) ::_exit(2);
                      FileSystem::real().write_file(incoming.files() / "more", "more", 0600);
                      incoming.publish({.name = "a", .source = "/source", .bytes = 8});
                    }),
            0);
  EXPECT_EQ(names(store_of(kOne) / "objects/a/files").size(), 2U);
}

TEST_F(CacheOfANode, InAUsersStoreRootBecomesThatUserForGood) {
  const nlohmann::json ids = cache::as_user(kOne, kTwo, seconds(20), [] {
    uid_t real = 0, effective = 0, saved = 0;
    ::getresuid(&real, &effective, &saved);
    return nlohmann::json{real, effective, saved, ::getegid(), ::getgroups(0, nullptr), ::setuid(0)};
  });
  EXPECT_EQ(ids, (nlohmann::json{kOne, kOne, kOne, kTwo, 0, -1}));
}

}  // namespace
}  // namespace lockstep::cache
