// Removes the records of jobs that ended long ago. Records take memory, and without the plugin nothing else
// removes them.
//
// Threads: safe from any, and from several processes at once.
#pragma once

#include <chrono>
#include <filesystem>
#include <string>

namespace lockstep::profile {

/// Long enough to look at a job that has ended; the same as the plugin's.
inline constexpr std::chrono::hours kRecordsKept{1};

/// Removes the folders JOB.STEP in `records`, except `keep`, that contain only records without a write in the last
/// kRecordsKept. Folders with other files stay, and so do folders of other users and links. Does not throw: a folder
/// that cannot be removed stays.
void remove_old_records(const std::filesystem::path& records, const std::string& keep);

}  // namespace lockstep::profile
