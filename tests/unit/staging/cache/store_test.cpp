#include "staging/cache/store.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "common/files.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using staging_test::kName;
using staging_test::mode_of;
using staging_test::ThrowsErrorWith;
using testing::ElementsAre;
using testing::IsEmpty;
using LockKind = FileSystem::LockKind;

using CacheStore = staging_test::CacheTest;

TEST_F(CacheStore, APublishedObjectIsCompleteAndReadOnly) {
  Store store(cache());
  EXPECT_FALSE(store.has(kName));
  publish(store, kName, "data");
  ASSERT_TRUE(store.has(kName));
  EXPECT_EQ(staging_test::read(store.files(kName) / "data"), "data");
  EXPECT_EQ(mode_of(store.files(kName) / "data"), 0444U);
  EXPECT_EQ(mode_of(store.files(kName)), 0555U);
  const std::vector<ObjectInfo> list = store.list();
  ASSERT_EQ(list.size(), 1U);
  EXPECT_EQ(list[0].name, kName);
  EXPECT_EQ(list[0].source, "/source");
  EXPECT_EQ(list[0].bytes, 4U);
  EXPECT_THAT(objects(), ElementsAre(kName));
}

TEST_F(CacheStore, AnUnpublishedObjectVanishes) {
  Store store(cache());
  {
    const ObjectLock lock = store.lock(kName, LockKind::exclusive);
    const Incoming incoming = store.begin(kName, 0);
    FileSystem::real().write_file(incoming.files() / "data", "half", 0600);
    EXPECT_FALSE(store.has(kName));
    EXPECT_THAT(store.list(), IsEmpty());
  }
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(CacheStore, AHardLinkOutlivesTheObject) {
  Store store(cache());
  publish(store, kName, "data");
  FileSystem::real().link(store.files(kName) / "data", folder_ / "job");
  {
    const ObjectLock lock = store.lock(kName, LockKind::exclusive);
    store.remove(kName);
  }
  EXPECT_FALSE(store.has(kName));
  EXPECT_EQ(staging_test::read(folder_ / "job"), "data");
  EXPECT_THAT(objects(), IsEmpty());
}

TEST_F(CacheStore, RecoveryRemovesOnlyTheWorkOfDeadProcesses) {
  Store store(cache());
  fs::create_directories(cache() / "objects/.incoming-dead/files");
  fs::create_directories(cache() / "objects/.incoming-killed/files");
  fs::create_directories(cache() / "objects/.removed-dead/files");
  fs::permissions(cache() / "objects/.removed-dead/files", fs::perms::owner_read | fs::perms::owner_exec);
  fs::last_write_time(cache() / "objects/.incoming-dead/files",
                      fs::file_time_type::clock::now() - std::chrono::hours(25));
  write("cache/locks/gone", "");
  const ObjectLock lock = store.lock("alive", LockKind::exclusive);
  const Incoming incoming = store.begin("alive", 0);
  EXPECT_EQ(Store(cache()).recover(), 2);
  EXPECT_THAT(objects(), ElementsAre(".incoming-alive", ".incoming-killed"))
      << "a killed copy can be resumed for a day";
  EXPECT_THAT(FileSystem::real().list(cache() / "locks"), ElementsAre(".room", "alive", "killed"));
}

TEST_F(CacheStore, AKilledCopyIsContinued) {
  Store store(cache());
  const ObjectLock lock = store.lock(kName, LockKind::exclusive);
  {
    Incoming killed = store.begin(kName, 8);
    EXPECT_FALSE(killed.resumed());
    write(killed.files() / "sub/a", "half");
    killed.keep();
  }
  Incoming incoming = store.begin(kName, 8);
  ASSERT_TRUE(incoming.resumed());
  EXPECT_EQ(staging_test::read(incoming.files() / "sub/a"), "half");
  FileSystem::real().write_file(incoming.files() / "b", "done", 0600);
  incoming.publish({.name = kName, .source = "/source", .bytes = 8});
  EXPECT_EQ(staging_test::content_of(store.files(kName)),
            (std::map<std::string, std::string>{{"b", "done"}, {"sub/a", "half"}}));
  EXPECT_EQ(staging_test::content_of(cache() / "objects" / kName).size(), 3U) << "more than object.json";
  EXPECT_EQ(mode_of(store.files(kName) / "sub"), 0555U);
  EXPECT_EQ(mode_of(store.files(kName) / "sub/a"), 0444U);
}

TEST_F(CacheStore, ADescriptionKeepsEveryFileName) {
  const ObjectInfo info{
      .name = kName,
      .source = "/data/\xff",
      .bytes = 7,
      .created = 8,
      .format = "hdf5",
      .files = {{.name = "a/\"b\"", .size = 3, .xxh3 = "01"}, {.name = "\xff\x01", .size = 4, .xxh3 = "02"}}};
  const ObjectInfo again = parse_object(to_json(info), kName, "object.json");
  EXPECT_EQ(again.format, "hdf5");
  EXPECT_EQ(again.bytes, 7U);
  ASSERT_EQ(again.files.size(), 2U);
  EXPECT_EQ(again.files[0].name, info.files[0].name);
  EXPECT_EQ(again.files[1].name, info.files[1].name);
  EXPECT_EQ(again.files[1].xxh3, "02");
  EXPECT_THAT(parse_object(to_json(info), kName, "object.json", true).files, IsEmpty());
  for (const char* damaged : {"", "{", "[]", "{\"source\":1}", "{\"source\":\"a\",\"bytes\":\"x\"}"}) {
    EXPECT_THAT([&] { parse_object(damaged, kName, "/x/object.json"); },
                ThrowsErrorWith("/x/object.json is damaged"));
  }
}

// Staging has 256 MB for everything, and a plain folder may have very many files.
TEST_F(CacheStore, ADescriptionOfManyFilesTakesLittleMemory) {
  constexpr int kFiles = 100'000;
  const auto most_kilobytes = [] {
    struct rusage usage {};
    ::getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss;
  };
  EXPECT_EQ(staging_test::in_child([&] {
              ObjectInfo info{.name = kName, .source = "/data"};
              for (int f = 0; f < kFiles; ++f)
                info.files.push_back({fmt::format("folder/sample_{:08}.jpg", f), 1, std::string(32, '0')});
              const long before = most_kilobytes();
              const std::string text = to_json(info);
              const long written = most_kilobytes();
              if (written - before > 40'000) fail("writing took {} KB", written - before);
              info.files = std::vector<ObjectFile>();
              if (parse_object(text, kName, "object.json").files.size() != kFiles) fail("files are missing");
              if (most_kilobytes() - written > 40'000) fail("reading took {} KB", most_kilobytes() - written);
            }),
            0);
}

TEST_F(CacheStore, ALockOnARemovedLockFileIsTakenAgain) {
  // Between opening and locking the lock file, its holder may remove it and another process make it again. In
  // this system that happens once.
  const fs::path file = cache() / "locks" / kName;
  bool done = false;
  staging_test::HookedFileSystem remover([&](const FileCall& call) {
    if (call.kind == FileCall::Kind::flock && !std::exchange(done, true)) {
      fs::rename(file, file.string() + ".old");  // so that the new file cannot get the same inode
      std::ofstream(file) << "another's";
    }
    return staging_test::real_call(call);
  });
  Store store(cache(), remover);
  const ObjectLock lock = store.lock(kName, LockKind::exclusive);
  EXPECT_TRUE(fs::exists(file));
  struct stat named {};
  struct stat held {};
  ASSERT_EQ(::stat(file.c_str(), &named), 0);
  ASSERT_EQ(::fstat(lock.fd(), &held), 0);
  EXPECT_EQ(named.st_ino, held.st_ino);
}

TEST_F(CacheStore, AnotherUsersFolderIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to make another user's folder";
  fs::create_directory(cache());
  ASSERT_EQ(::chown(cache().c_str(), 4242, 4242), 0);
  EXPECT_THAT([&] { Store store(cache()); }, ThrowsErrorWith(cache().string(), "belongs to user 4242"));
}

TEST_F(CacheStore, TheFirstMissingFolderOfAPathIsNamed) {
  const std::string missing = "the folder " + (folder_ / "disk").string() + " does not exist; make it";
  for (const char* path : {"disk/cache", "disk/user/cache/"}) {
    EXPECT_THAT([&] { Store store(folder_ / path); }, ThrowsErrorWith(path, missing));
  }
  EXPECT_FALSE(fs::exists(folder_ / "disk"));
  write("file", "");
  EXPECT_THAT([&] { Store store(folder_ / "file/cache"); }, ThrowsErrorWith("file/cache: Not a directory"));
}

TEST_F(CacheStore, ALinkInPlaceOfAFolderIsRefused) {
  fs::create_directories(folder_ / "elsewhere");
  fs::create_directories(cache());
  fs::create_symlink(folder_ / "elsewhere", cache() / "objects");
  EXPECT_THAT([&] { Store store(cache()); }, ThrowsErrorWith((cache() / "objects").string(), "not a folder"));
}

}  // namespace
}  // namespace lockstep::cache
