// The report as a table for a terminal, and as JSON for programs.
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

/// "job 77.0" or "run without a scheduler", program, ranks and steps.
std::string title(const Run& run);

/// "running", "finished" or "ended without a word" (killed): the worst of the ranks.
std::string state(const Run& run);

/// A rank's waiting for others in milliseconds per step, or "-" where it was not measured.
std::string waiting(const record::Snapshot& rank);

}  // namespace lockstep::report
