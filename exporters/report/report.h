// The report as a table for a terminal, as JSON for programs, and as a page; a comparison of two runs; joined traces.
//
// Threads: safe from any.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exporters/report/diagnosis.h"

namespace lockstep::report {

/// A line per rank (milliseconds per step by phase), a line per node (staging), and advice.
std::string to_text(const Run& run);

nlohmann::json to_json(const Run& run);

/// Program, job, ranks and steps.
std::string title(const Run& run);

/// When it began, how long it lasted, whose it is, and which version reports it.
struct Circumstances {
  std::string started;  ///< "2026-11-23 11:40 UTC"; "-" if the record's time is impossible
  double started_unix = 0;
  double seconds = 0;  ///< from the first rank's start to the last one's end or last step
  std::string user;    ///< the owner of the records
};
Circumstances circumstances(const Run& run);
/// When the last of its ranks ended or, if it runs, published a step.
double end_unix(const Run& run);

/// "running", "finished" or "died" (it ended without finishing): the worst state of any rank.
std::string state(const Run& run);

/// The time that a rank waited for others, in milliseconds per step; "-" if it was not measured.
std::string waiting(const record::Snapshot& rank);

/// A table: each figure of the run, of the baseline, and the change in percent.
std::string comparison_text(const Run& run, const Run& baseline);

/// {"run":{"step_ms":…,…},"baseline":{…},"change":{"step_ms":-0.12,…}}; a change without a baseline is null.
nlohmann::json comparison_json(const Run& run, const Run& baseline);

/// One self-contained HTML page: it needs no server, script or other file.
std::string to_html(const Run& run);

/// The page up to its first picture.
std::string page_begin(const std::string& title, const std::string& state);

// How reports show the ranks beside each other: own time, against the other ranks and against the rank's own past, and
// the rank that each one waits for; and what each rank's process uses (rank_tables.cpp).

/// A table of the slowest ranks; empty if there is only one rank, or no step that all ranks have.
std::string straggler_text(const Stragglers& stragglers);

/// The same for a page, with its heading.
std::string straggler_html(const Stragglers& stragglers);

/// {"steps":…,"step_ms":…,"network_ms":…,"ranks":[…],"found":[…]}, with all ranks.
nlohmann::json straggler_json(const Stragglers& stragglers);

/// Tables of the ranks with the largest memory, of their GPUs, and of the bandwidth of collectives; empty without samples.
std::string resource_text(const Run& run);

/// The same for a page, with all ranks and a heading.
std::string resource_html(const Run& run);

/// {"cpu_seconds":…,"memory_peak_bytes":…,"read_bytes":…, …, "gpu":{…}, "collectives":{…}}; null without a sample.
nlohmann::json resource_json(const record::Snapshot& rank);

/// The joined traces of a profile. Each rank leaves one beside the records, trace-RANK.json (runtime/profile/trace_file.h);
/// together they show all ranks on one time line.
struct JoinedTrace {
  std::string run;       ///< JOB.STEP
  int ranks = 0;         ///< in the joined trace
  int ranks_of_run = 0;  ///< more than `ranks` if some left no trace
};

/// Writes the traces in these folders as one trace. If they are of several runs, joins those of the latest one. Memory does
/// not grow with the traces. Throws Error naming the folder if it has no trace, or the file that cannot be read or written.
JoinedTrace join_traces(const std::vector<std::filesystem::path>& folders, const std::filesystem::path& out);

}  // namespace lockstep::report
