// Helpers of the tests of a node's cache: stores of several users, and old job folders.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <string>

#include "staging/cache/collect.h"
#include "staging/cache/node.h"
#include "tests/unit/staging/cache/cache_world.h"

namespace lockstep::staging_test {

using std::chrono::seconds;

inline constexpr uid_t kOne = 54001;
inline constexpr uid_t kTwo = 54002;

class CacheGc : public CacheTest {
 protected:
  /// Makes everything in it look as if nothing was changed for that long.
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
    write(fs::path("cache/jobs") / job / "old/0/x", "replaced while the job ran");
    age(cache() / "jobs" / job, age_of_it);
  }
  static cache::StoreReport gc(cache::Store& store,
                               const cache::CollectOptions& options = {.keep = seconds(0)}) {
    return cache::collect(store, FileSystem::real(), options);
  }
};

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
                        cache::Store store(store_of(user));
                        publish(store, name, std::string(units * kUnit, 'x'));
                      }),
              0);
    age(store_of(user) / "objects" / name / "object.json", used_ago);
  }
  static cache::NodeOptions total(std::uint64_t bytes) {
    cache::NodeOptions options;
    options.store.keep = seconds(10);
    options.total = bytes;
    return options;
  }
  cache::NodeReport gc_all(const cache::NodeOptions& options) const {
    return cache::collect_node(cache(), FileSystem::real(), options);
  }
};

}  // namespace lockstep::staging_test
