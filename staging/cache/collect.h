// A report about one store, for admins: a process of another user hands it over as JSON. And its garbage collection, as its
// user: removes what crashed calls and ended jobs left, and what is over the quota.
//
// Threads: reports are values; the rest as its Store.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "staging/cache/store.h"

namespace lockstep::cache {

struct ObjectReport {
  ObjectUsage object;
  std::vector<LeaseHolder> leases;
  bool in_use = false;  ///< leased, or linked in a job's folder
};

/// Something that was removed, or would be without a dry run.
struct Removal {
  std::string what;  ///< "object", "partial copy", "leftover", "job folder"
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
  std::uint64_t jobs_bytes = 0;     ///< of files that only jobs' folders still hold
  std::uint64_t foreign_bytes = 0;  ///< of files that are not part of a store; only if measured
  std::uint64_t jobs = 0;           ///< number of jobs' folders
  std::vector<Removal> removed{};
  std::vector<std::string> problems{};  ///< one line each: what is wrong, and what to do

  std::uint64_t bytes() const;
  std::uint64_t bytes_in_use() const;  ///< of objects in use, and of files that only jobs' folders still hold
  std::uint64_t bytes_copying() const;  ///< of copies under way and partial copies
  /// Of objects that are not in use but stay, because their last use is less than `keep` ago.
  std::uint64_t bytes_recent(std::chrono::seconds keep) const;
  /// Of what could be removed: objects not in use whose last use is at least `keep` ago, and partial copies.
  std::uint64_t bytes_idle(std::chrono::seconds keep) const;
};

/// Looks at a store; `measured`: at every file in it.
StoreReport survey(Store& store, FileSystem& system, bool measured);
/// Looks at a shared store of another user: what this user may see.
StoreReport survey_shared(const std::filesystem::path& folder, FileSystem& system);

void to_json(nlohmann::json& value, const StoreReport& report);
/// Makes all texts printable and at most as long as a path, because another user may have chosen them.
void from_json(const nlohmann::json& value, StoreReport& report);

struct CollectOptions {
  std::uint64_t quota = 0;         ///< bytes that this store may hold; 0: no limit
  std::chrono::seconds keep{600};  ///< as in StoreOptions
  std::chrono::seconds abandoned{
      86400};            ///< age at which partial copies and job folders without lease are removed
  bool dry_run = false;  ///< only report what would be removed
};

/// Removes what will not be used again, evicts down to the quota, and reports what was removed and what the
/// store holds now. If something cannot be removed, the report names it as a problem and the rest goes on.
StoreReport collect(Store& store, FileSystem& system, const CollectOptions& options);

/// Evicts these objects unless they are in use.
StoreReport evict(Store& store, FileSystem& system, const std::vector<std::string>& names,
                  const std::string& why, const CollectOptions& options);

}  // namespace lockstep::cache
