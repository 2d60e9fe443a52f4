// What an admin wants to know of one store, and how a process that is another user hands it over.
//
// Threads: values; survey() as its Store.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "staging/cache/store.h"

namespace lockstep::cache {

struct ObjectReport {
  ObjectUsage object;
  std::vector<Lease> leases;
  bool in_use = false;  ///< leased, or in a job's folder
};

/// Something that was removed, or would be in a dry run.
struct Removal {
  std::string what;  ///< "object", "half a copy", "leftover", "job folder", "lease file"
  std::string name;
  std::string source;  ///< of an object
  std::uint64_t bytes = 0;
  std::string why;
};

struct StoreReport {
  std::filesystem::path folder{};
  uid_t user = 0;
  std::vector<ObjectReport> objects{};
  std::vector<IncomingUsage> incoming{};
  std::uint64_t jobs_bytes = 0;  ///< in jobs' folders only
  std::uint64_t jobs = 0;        ///< folders of jobs
  std::vector<Removal> removed{};
  std::vector<std::string> problems{};  ///< what is wrong and what to do, a line each

  std::uint64_t bytes() const;
  std::uint64_t bytes_in_use() const;   ///< of objects in use, and in jobs' folders only
  std::uint64_t bytes_copying() const;  ///< of copies under way or left half-done
  /// Of objects not in use that stay nevertheless, since their last use is less than `keep` ago.
  std::uint64_t bytes_recent(std::chrono::seconds keep) const;
  /// What could be removed: objects not in use whose last use is at least `keep` ago, and copies left
  /// half-done.
  std::uint64_t bytes_idle(std::chrono::seconds keep) const;
};

/// Looks at a store; with `measured` at every file of it.
StoreReport survey(Store& store, FileSystem& system, bool measured);
/// The same for a shared store that is another's: what this user may see.
StoreReport survey_shared(const std::filesystem::path& folder, FileSystem& system);

void to_json(nlohmann::json& value, const StoreReport& report);
/// All texts are printable then, and not longer than a path: another user may have chosen them.
void from_json(const nlohmann::json& value, StoreReport& report);

}  // namespace lockstep::cache
