// Finds the folders of a job's records by its number.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <vector>

namespace lockstep::report {

/// The folders with records named by an argument of lockstep-report: the argument where such a path exists, else,
/// for a job number JOB or JOB.STEP, the first of these places that has it:
///
///   $LOCKSTEP_REPORT_DIR, ./report-JOB, ./report/JOB      copies that the ranks left
///   /run/lockstep/records/UID/JOB.STEP                    this node's records with the plugin
///   $XDG_RUNTIME_DIR/lockstep/records/JOB.STEP, /dev/shm/lockstep-UID/records/JOB.STEP   and without it
///
/// Without STEP all steps of the job in that place, from 0 to 999. Prefer::live looks for this node's records first.
/// Throws Error naming the places if none has it, or the folders that this user may not read.
enum class Prefer { copies, live };
std::vector<std::filesystem::path> find_records(const std::filesystem::path& argument,
                                                Prefer prefer = Prefer::copies);

}  // namespace lockstep::report
