// The folders of jobs on the memory file system /run/lockstep: records in RECORDS/UID/JOB.STEP, links in LINKS/jobs/JOB/UID.
// Root makes them at a step's start and removes them after the job's end, also if a user has filled the file system, and if
// the job's end was never reported.
//
// Beside them are marks, files of root's, which need no space at the end because they exist from the start:
//   .running-JOB.STEP   slurmstepd holds a lock on it as long as it lives
//   .ended-JOB.STEP     the same file, renamed: its time is the end of the job
//
// Threads: slurmstepd's main thread; at a job's end, that of slurmd's helper.
#pragma once

#include <string>

#include "common/leaf/unique_fd.h"
#include "plugin/spank/process/folder.h"

namespace lockstep::spank {

/// Makes the mark of a step ("JOB.STEP") that begins, also if an earlier run of a requeued job has ended under this name. The
/// descriptor holds the lock. Throws Error.
UniqueFd mark_running(const Folder& parent, const std::string& step);

/// After a job's end: marks its records in RECORDS/UID as ended, and those of jobs that have no slurmstepd left; removes
/// all whose end is `keep` seconds ago. Failures go to log().
void clean_up_records(const Folder& records, uid_t uid, const std::string& job, int keep);

/// After a job's end: removes its links, and those of jobs that have no slurmstepd left. Failures go to log().
void clean_up_links(const Folder& links, const std::string& job);

}  // namespace lockstep::spank
