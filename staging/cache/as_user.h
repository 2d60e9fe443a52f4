// Runs work in a child process that has become another user for good.
//
// Threads: the calling program has one thread.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>

namespace lockstep::cache {

/// Runs `work` as that user and group, without other groups and with no way back, and returns its result.
/// Uses a child even if the ids are the caller's own, so that whatever happens there cannot harm the caller.
/// Kills the child after `timeout`. Throws Error with the message of `work`'s exception, or saying how the
/// child ended.
nlohmann::json as_user(uid_t user, gid_t group, std::chrono::seconds timeout,
                       const std::function<nlohmann::json()>& work);

}  // namespace lockstep::cache
