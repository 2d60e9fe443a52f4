// A child process that is another user for good.
//
// Threads: the calling program has one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace lockstep::cache {

/// Runs `work` as that user and group (with no others, and no way back) and returns what it returned. Where
/// the ids are the caller's own already, still in a child, so that whatever happens in there stays there.
/// Throws Error with what `work` threw, or how its process ended; kills it after `patience`.
nlohmann::json as_user(uid_t user, gid_t group, std::chrono::seconds patience,
                       const std::function<nlohmann::json()>& work);

}  // namespace lockstep::cache
