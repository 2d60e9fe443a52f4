// Garbage collection of one store, as its user: removes what crashed calls and ended jobs left, and what is
// over the quota.
//
// Threads: as its Store.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "staging/cache/report.h"
#include "staging/cache/store.h"

namespace lockstep::cache {

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
