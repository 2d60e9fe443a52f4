// Finds the folder of a rank's record, and copies the record to a folder that all nodes share.
//
// Threads: safe from any.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "exporters/record/record.h"

namespace lockstep::profile {

/// "rank-000003.record".
std::string record_name(int rank);

/// The job's number if there is no scheduler: the process id of this process's parent, which is the launcher or one of
/// its daemons.
std::uint64_t local_job_id();

/// $LOCKSTEP_RECORD, else JOB.STEP in the user's runtime folder ($XDG_RUNTIME_DIR/lockstep/records, or
/// /dev/shm/lockstep-UID/records if that does not exist). Makes the folder if needed. Throws Error naming
/// the folder.
std::filesystem::path make_record_folder(const record::Identity& identity);

/// Makes the folder for copies of records if needed. Throws Error naming it if records could not be copied there:
/// better at the job's start than at its end.
void check_report_folder(const std::filesystem::path& folder);

/// Copies a record to `folder`, which it makes if needed; the first rank of a node also copies the report of
/// staging, staging.json, as staging-NODE.json. Readers never see partial files. Throws Error naming the
/// path.
void copy_record(const std::filesystem::path& record, const record::Identity& identity,
                 const std::filesystem::path& folder);

}  // namespace lockstep::profile
