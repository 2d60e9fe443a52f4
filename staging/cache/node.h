// All stores of a node: <cache>/UID of every user, and <cache>/shared. Root works in a user's store only as that user,
// in a separate process that has given up root's rights for good. So a link in the store gives access to nothing that
// its user could not reach anyway.
//
// Threads: the calling program has one thread; the calls fork.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "staging/cache/collect.h"

namespace lockstep::cache {

struct NodeOptions {
  CollectOptions store;                     ///< for each user's store
  std::uint64_t total = 0;                  ///< bytes that all stores may hold together; 0: no limit
  std::uint64_t reserve = 0;                ///< bytes of `total` to leave free for the next jobs
  std::chrono::seconds store_timeout{300};  ///< for one user's store; then its process is killed
  std::chrono::seconds budget{900};         ///< for all stores; after that each of the rest gets 10 s
};

struct NodeReport {
  std::filesystem::path cache;
  std::uint64_t free = 0;  ///< bytes on the disk
  std::vector<StoreReport> stores;
  std::vector<std::string> problems;  ///< one line each: what is wrong, and what to do

  std::uint64_t bytes() const;
};

/// True if the folder holds stores and is not a store itself.
bool is_node_cache(const std::filesystem::path& cache);

/// Looks at all stores. Root sees all of them; other users see their own and the shared one. Throws Error if
/// `cache` is not such a folder, or root must not trust it.
NodeReport survey_node(const std::filesystem::path& cache, FileSystem& system, const NodeOptions& options);

/// As root: runs collect() in every store. Then evicts objects of all
/// users, least recently used first, down to the total minus the reserve.
NodeReport collect_node(const std::filesystem::path& cache, FileSystem& system, const NodeOptions& options);

/// Runs `work` as that user and group, without other groups and with no way back, and returns its result.
/// Uses a child even if the ids are the caller's own, so that whatever happens there cannot harm the caller.
/// Kills the child after `timeout`. Throws Error with the message of `work`'s exception, or saying how the
/// child ended.
nlohmann::json as_user(uid_t user, gid_t group, std::chrono::seconds timeout,
                       const std::function<nlohmann::json()>& work);

}  // namespace lockstep::cache
