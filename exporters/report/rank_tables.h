// How reports show the ranks beside each other: own time, against the other ranks and against the rank's own past, and
// the rank that each one waits for; and what each rank's process uses.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exporters/report/stragglers.h"

namespace lockstep::report {

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

}  // namespace lockstep::report
