// All stores of a node: <cache>/UID of every user, and <cache>/shared. Root works in a user's store only as
// that user, in a process of its own that has given up being root for good: whatever links the user has put
// there, they lead no further than he can go himself.
//
// Threads: the calling program has one thread; the calls fork.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "staging/cache/collect.h"
#include "staging/cache/report.h"

namespace lockstep::cache {

struct NodeOptions {
  CollectOptions store;                ///< for each user's store
  std::uint64_t total = 0;             ///< of all stores together, bytes; 0: none
  std::uint64_t room = 0;              ///< of total, to be left free for those who come next
  std::chrono::seconds patience{300};  ///< with one user's store; then its process is killed
  std::chrono::seconds budget{900};    ///< once all of them have taken that long, the rest get 10 s each
};

struct NodeReport {
  std::filesystem::path cache;
  std::uint64_t free = 0;  ///< bytes on the disk
  std::vector<StoreReport> stores;
  std::vector<std::string> problems;  ///< what is wrong and what to do, a line each

  std::uint64_t bytes() const;
};

/// True where the folder holds stores, and is none itself.
bool is_node_cache(const std::filesystem::path& cache);

/// Looks at all stores. Root sees all, others their own and the shared one. Throws Error where `cache` is no
/// such folder, or one that root must not trust.
NodeReport survey_node(const std::filesystem::path& cache, FileSystem& system, const NodeOptions& options);

/// As root: collect() in every store, then evicts least recently used objects of all users down to the total,
/// and writes down what each user really holds.
NodeReport collect_node(const std::filesystem::path& cache, FileSystem& system, const NodeOptions& options);

}  // namespace lockstep::cache
