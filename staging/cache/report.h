// A report about one store, for admins. A process of another user hands it over as JSON.
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

}  // namespace lockstep::cache
