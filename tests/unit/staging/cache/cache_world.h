// Helpers of the cache's tests: objects, and steps that hold leases.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/files.h"
#include "staging/cache/incoming.h"
#include "tests/unit/staging/staging_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::staging_test {

inline constexpr std::uint64_t kUnit = 10'000;  // bytes

class CacheTest : public StagingTest {
 protected:
  fs::path cache() const { return folder_ / "cache"; }

  /// Begins, fills and publishes an object of one file.
  static void publish(cache::Store& store, const std::string& name, const std::string& content);

  /// Runs `work` as that user in a child and returns its exit code as in_child() does. Needs root.
  static int as_user(uid_t user, const std::function<void()>& work);

  /// The names in a folder; none if it does not exist.
  static std::vector<std::string> names(const fs::path& folder);

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

}  // namespace lockstep::staging_test
