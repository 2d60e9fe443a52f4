// Where a rank's record goes, and how a copy of it gets to a folder that all nodes share.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "exporters/record/snapshot.h"

namespace lockstep::profile {

/// "rank-000003.record".
std::string record_name(int rank);

/// Stands in for a job's number where no scheduler gave one: the launcher's process id, the same for all of
/// its ranks on a node.
std::uint64_t local_job_id();

/// $LOCKSTEP_RECORD, else JOB.STEP in the user's runtime folder ($XDG_RUNTIME_DIR/lockstep/records, or
/// /dev/shm/lockstep-UID/records where there is none), made if needed. Beside the latter a node's first rank
/// removes the records of jobs that have been over for an hour. Throws Error naming the folder.
std::filesystem::path make_record_folder(const record::Identity& identity);

/// Copies a record to `folder`, made if needed, and the node's first rank also what staging said
/// (staging.json, as staging-NODE.json). A reader there sees whole files only. Throws Error naming the path.
void leave_copy(const std::filesystem::path& record, const record::Identity& identity,
                const std::filesystem::path& folder);

}  // namespace lockstep::profile
