// Helpers of the cache's tests: objects, steps that hold leases, old job folders, and a node with the stores of several users.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "common/files.h"
#include "staging/cache/collect.h"
#include "staging/cache/node.h"
#include "staging/cache/store.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::staging_test {

using std::chrono::seconds;

inline constexpr std::uint64_t kUnit = 10'000;  // bytes
inline constexpr uid_t kOne = 54001;
inline constexpr uid_t kTwo = 54002;

class CacheTest : public StagingTest {
 protected:
  /// Begins, fills and publishes an object of one file.
  static void publish(cache::Store& store, const std::string& name, const std::string& content);

  /// Runs `work` as that user in a child and returns its exit code as in_child() does. Needs root.
  static int as_user(uid_t user, const std::function<void()>& work);

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

  /// The lease file of a step that lives as long as this object. It is held as slurmstepd holds it.
  class Step {
   public:
    Step(const cache::Store& store, const std::string& step);
    const fs::path& file() const { return file_; }

   private:
    fs::path file_;
    UniqueFd fd_;
  };
};

class CacheOfANode : public CacheTest {
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
