// Looking after one store, as its user: what crashed calls and ended jobs left is removed, and what is over
// the quota.
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
  std::uint64_t quota = 0;                ///< of this store, bytes; 0: none
  std::chrono::seconds keep{600};         ///< as in StoreOptions
  std::chrono::seconds abandoned{86400};  ///< age at which job folders without leases, and half copies, go
  bool dry_run = false;                   ///< say what would be removed, and remove nothing
};

/// Removes what nobody will come back for, evicts down to the quota, and reports what was removed and what is
/// there now. A thing that cannot be removed is a problem in the report, and the rest goes on.
StoreReport collect(Store& store, FileSystem& system, const CollectOptions& options);

/// Evicts these objects where nobody uses them (any more).
StoreReport evict(Store& store, FileSystem& system, const std::vector<std::string>& names,
                  const std::string& why, const CollectOptions& options);

}  // namespace lockstep::cache
