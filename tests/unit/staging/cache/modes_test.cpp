// Staging and gc work although chmod has removed access to a store's own folders.

#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "staging/cache/collect.h"
#include "tests/unit/staging/cache/node_world.h"

namespace lockstep::cache {
namespace {

namespace fs = std::filesystem;

using namespace staging_test;
using std::chrono::seconds;
using testing::Contains;
using testing::IsEmpty;

/// Folders as chmod leaves them.
class CacheModes : public CacheOfANode {
 protected:
  /// Makes a store of kOne with one object and a job's folder, then makes `name`, if missing, and removes all
  /// access.
  void close(const fs::path& name) const {
    FileSystem::real().remove_all(store_of(kOne));
    fs::create_directory(store_of(kOne));
    ASSERT_EQ(::chown(store_of(kOne).c_str(), kOne, kOne), 0);
    put(kOne, "old", 1, seconds(500));
    const fs::path closed = store_of(kOne) / name;
    ASSERT_EQ(as_user(kOne,
                      [&] {
                        write(store_of(kOne) / "jobs/7/lock", "");
                        const bool file = name.parent_path() == "locks" || name.filename() == "lock";
                        file ? write(closed, "") : static_cast<void>(fs::create_directories(closed));
                        fs::permissions(closed, fs::perms::none);
                      }),
              0);
    for (const char* folder : {"jobs", "leases"}) age(store_of(kOne) / folder, std::chrono::hours(30));
  }
};

constexpr std::array kClosed = {"", "objects", "locks", "leases"};

TEST_F(CacheModes, DataIsPutIntoAStoreThatChmodHasClosed) {
  for (const char* name : kClosed) {
    SCOPED_TRACE(name);
    close(name);
    EXPECT_EQ(as_user(kOne,
                      [&] {
                        Store store(store_of(kOne));
                        store.recover(seconds(0));
                        publish(store, "new", "data");
                        const Step step(store, "7.0");
                        store.add_lease("new", step.file());
                        if (!store.leased("new") || store.list().size() != 2) ::_exit(2);
                      }),
              0);
  }
}

TEST_F(CacheModes, GcCollectsAStoreThatChmodHasClosed) {
  for (const char* name : kClosed) {
    SCOPED_TRACE(name);
    close(name);
    NodeOptions options = total(1);
    options.store.abandoned = seconds(0);
    const NodeReport report = gc_all(options);
    EXPECT_THAT(report.problems, IsEmpty());
    for (const StoreReport& store : report.stores) EXPECT_THAT(store.problems, IsEmpty());
    EXPECT_THAT(names(store_of(kOne) / "objects"), IsEmpty());
    EXPECT_THAT(names(store_of(kOne) / "jobs"), IsEmpty());
  }
}

// A folder of root that users may not enter: they cannot even stat a path through a link to it.
TEST_F(CacheModes, ALinkToRootsFolderIsRemovedWhereverAUserPutsIt) {
  write("secret/kept", "root's");
  fs::create_directories(folder_ / "secret/files");
  fs::permissions(folder_ / "secret", fs::perms::owner_all);
  for (const char* planted : {"objects/a", "objects/.removed-a", "objects/.incoming-a", "objects/a/files",
                              "jobs/1", "leases/old"}) {
    SCOPED_TRACE(planted);
    close("leases/held");
    fs::permissions(store_of(kOne) / "leases/held", fs::perms::owner_all);
    fs::create_directories((store_of(kOne) / planted).parent_path());
    FileSystem::real().remove_all(store_of(kOne) / planted);
    fs::create_directory_symlink(folder_ / "secret", store_of(kOne) / planted);
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(store_of(kOne))) {
      ASSERT_EQ(::lchown(entry.path().c_str(), kOne, kOne), 0);
      FileSystem::real().set_modified(entry.path(), 1'000'000'000);
    }
    const NodeReport report = gc_all(total(1));
    EXPECT_THAT(report.problems, IsEmpty());
    EXPECT_THAT(names(store_of(kOne) / "objects"), IsEmpty());
    EXPECT_THAT(names(store_of(kOne) / "jobs"), IsEmpty());
    EXPECT_EQ(staging_test::read(folder_ / "secret/kept"), "root's");
  }
}

TEST_F(CacheModes, StatusNamesALinkInAnObjectsPlaceAndCountsTheRest) {
  fs::create_directory(folder_ / "secret");
  fs::permissions(folder_ / "secret", fs::perms::owner_all);
  close("leases/held");
  fs::create_directory_symlink(folder_ / "secret", store_of(kOne) / "objects/a");
  const NodeReport report = survey_node(cache(), FileSystem::real(), {});
  EXPECT_THAT(report.problems, IsEmpty());
  ASSERT_EQ(report.stores.size(), 2U);
  EXPECT_EQ(report.stores.at(0).bytes(), kUnit);
  EXPECT_THAT(report.stores.at(0).problems, Contains(testing::HasSubstr("objects/a is not a folder")));
}

}  // namespace
}  // namespace lockstep::cache
