// Joins the traces of a profile. Each rank leaves one beside the records, trace-RANK.json
// (runtime/profile/trace_file.h); together they show all ranks on one time line.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace lockstep::report {

struct JoinedTrace {
  std::string run;       ///< JOB.STEP
  int ranks = 0;         ///< in the joined trace
  int ranks_of_run = 0;  ///< more than `ranks` if some left no trace
};

/// Writes the traces in these folders as one trace. If they are of several runs, joins those of the latest one. Memory does
/// not grow with the traces. Throws Error naming the folder if it has no trace, or the file that cannot be read or written.
JoinedTrace join_traces(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& out);

}  // namespace lockstep::report
