// Removes the records of jobs that are long over. Records lie in memory, and where there is no plugin nobody
// else removes them.
//
// Threads: safe from any; several processes may do so at once.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace lockstep::profile {

/// Long enough to look at what a job did; as long as the plugin keeps them.
inline constexpr std::chrono::hours kRecordsKept{1};

/// Removes those folders JOB.STEP of `records` in which there is nothing but records that nobody has written
/// to for kRecordsKept; `but` by name stays. Whatever else lies there stays too, and so does all that is not
/// this user's or is reached through a link. Does not throw: what cannot be removed stays.
void remove_old_records(const std::filesystem::path& records, const std::string& but);

}  // namespace lockstep::profile
