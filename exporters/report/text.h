// The report as a table for a terminal, and as JSON for programs; and a comparison of two runs: where the time of a step
// changed.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exporters/report/run.h"

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

}  // namespace lockstep::report
