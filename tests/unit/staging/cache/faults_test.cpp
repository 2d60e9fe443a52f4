// The process is killed, or the disk is full, at every single call of begin, publish, add_lease, eviction,
// recovery and gc: partial data is never served, the next call works, and nothing leaks.

#include <sys/stat.h>

#include <cerrno>

#include "staging/cache/collect.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/cache/cache_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using staging_test::CacheTest;
using staging_test::WatchedFileSystem;
using testing::Each;
using testing::Not;
using testing::StartsWith;
using LockKind = FileSystem::LockKind;
using std::chrono::seconds;

constexpr const char* kOld = "00000000000000000000000000000000";
constexpr const char* kNew = "11111111111111111111111111111111";
constexpr const char* kDamaged = "22222222222222222222222222222222";
constexpr int kMaxCalls = 1000;
constexpr std::uint64_t kBytes = 5000;

class CacheFaults : public CacheTest {
 protected:
  static StoreOptions options() { return {.quota = 2 * kBytes, .min_free = 0, .keep = seconds(0)}; }

  static std::string content(const std::string& name) { return std::string(kBytes / 2, name[0]); }

  static void put(Store& store, FileSystem& system, const std::string& name) {
    const ObjectLock lock = store.lock(name, LockKind::exclusive);
    if (store.has(name)) return;
    Incoming incoming = store.begin(name, kBytes);
    system.remove_all(incoming.files() / "a");
    system.write_file(incoming.files() / "a", content(name), 0600);
    system.make_folder(incoming.files() / "sub", 0700);
    system.remove_all(incoming.files() / "sub/b");
    system.write_file(incoming.files() / "sub/b", content(name), 0600);
    incoming.publish({.name = name, .source = "/source", .bytes = kBytes});
  }

  /// A store with an idle object, one that will be evicted for another, and leftovers of jobs.
  void make_world() const {
    WatchedFileSystem system([](int, const FileCall&) { return 0; });
    system.remove_all(cache());
    Store store(cache(), options(), system);
    put(store, system, kOld);
    put(store, system, kDamaged);
    write("cache/jobs/7/data/x", "of a job long gone");
    write("cache/jobs/7/staged.json", "[]");
    fs::create_directories(cache() / "objects/.removed-gone/files");
    write("cache/leases/held/7.0", "");
    fs::create_directories(cache() / "leases" / kOld);
    fs::create_hard_link(cache() / "leases/held/7.0", cache() / "leases" / kOld / "7.0");
    const auto long_ago = fs::file_time_type::clock::now() - std::chrono::hours(30);
    for (const char* name : {"data/x", "data", "staged.json", ""})
      fs::last_write_time(cache() / "jobs/7" / name, long_ago);
  }

  /// Everything that a node does with its store.
  void live(FileSystem& system) const {
    Store store(cache(), options(), system);
    store.recover();
    put(store, system, kNew);  // evicts
    {
      const Step step(store, "8.0");
      const ObjectLock lock = store.lock(kNew, LockKind::shared);
      store.add_lease(kNew, step.file());
      if (store.evict(kNew, seconds(0))) fail("evicted what is leased");
    }
    {
      const ObjectLock lock = store.lock(kDamaged, LockKind::exclusive);
      if (store.has(kDamaged)) store.remove(kDamaged);
    }
    collect(store, system, {.quota = kBytes, .keep = seconds(0)});
  }

  void expect_whole() const {
    for (const std::string& name : names(cache() / "objects")) {
      if (name.starts_with('.')) continue;
      const fs::path files = cache() / "objects" / name / "files";
      EXPECT_EQ(staging_test::content_of(files),
                (std::map<std::string, std::string>{{"a", content(name)}, {"sub/b", content(name)}}));
      EXPECT_EQ(Store(cache()).info(name).bytes, kBytes);
    }
  }

  /// Whatever was left, the next calls work and leave only what was requested.
  void expect_recovered() const {
    expect_whole();
    WatchedFileSystem system([](int, const FileCall&) { return 0; });
    live(system);
    expect_whole();
    Store store(cache(), options(), system);
    EXPECT_TRUE(store.has(kNew));
    collect(store, system, {.quota = 0, .keep = seconds(0), .abandoned = seconds(0)});
    EXPECT_THAT(names(cache() / "objects"), Each(Not(StartsWith("."))));
    EXPECT_THAT(names(cache() / "jobs"), testing::IsEmpty());
    for (const char* folder : {"locks", "leases"}) {
      for (const std::string& name : names(cache() / folder)) {
        EXPECT_TRUE(name == ".room" || name == "held" || store.has(name)) << folder << '/' << name;
      }
    }
    EXPECT_LE(store.usage(true).bytes(), options().quota);
  }
};

TEST_F(CacheFaults, KilledAtAnyCallItServesNoPartialDataAndTheNextCallWorks) {
  const int kills = staging_test::kill_at_every_call({.prepare = [&] { make_world(); },
                                                      .work = [&](FileSystem& system) { live(system); },
                                                      .check = [&] { expect_recovered(); }});
  EXPECT_GT(kills, 150) << "the calls do not go through the seam";
}

TEST_F(CacheFaults, ADiskThatIsFullAtAnyCallServesNoPartialDataAndTheNextCallWorks) {
  // If it is unknown whether an object is in use, the object stays and nothing can be evicted.
  const int refusals = staging_test::fail_at_every_call(
      {.prepare = [&] { make_world(); },
       .work = [&](FileSystem& system) { live(system); },
       .check = [&] { expect_recovered(); },
       .refused =
           [](const Error& error) {
             EXPECT_THAT(error.what(), testing::AnyOf(testing::HasSubstr("No space left on device"),
                                                      testing::HasSubstr("in use by running jobs")));
           }},
      ENOSPC);
  EXPECT_GT(refusals, 30);
}

TEST_F(CacheFaults, ADiskThatStaysFullLeavesTheOldObjects) {
  int refusals = 0;
  for (int call = 1; call < kMaxCalls; ++call) {
    SCOPED_TRACE(fmt::format("call {}", call));
    make_world();
    // From then on no write succeeds; everything else does.
    bool refused = false;
    WatchedFileSystem system([&](int now, const FileCall& made) {
      const bool writes = made.kind == FileCall::Kind::write || made.kind == FileCall::Kind::mkdir;
      refused = refused || (now >= call && writes);
      return now >= call && writes ? ENOSPC : 0;
    });
    try {
      live(system);
    } catch (const Error&) {
    }
    expect_recovered();
    if (HasFailure() || !refused) break;
    ++refusals;
  }
  EXPECT_GT(refusals, 10) << "the calls do not go through the seam";
}

}  // namespace
}  // namespace lockstep::cache
