// How reports show what each rank's process uses.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

/// Tables of the ranks with the largest memory, of their GPUs, and of the bandwidth of collectives; empty without samples.
std::string resource_text(const Run& run);

/// The same for a page, with all ranks and a heading.
std::string resource_html(const Run& run);

/// {"cpu_seconds":…,"memory_peak_bytes":…,"read_bytes":…, …, "gpu":{…}, "collectives":{…}}; null without a sample.
nlohmann::json resource_json(const record::Snapshot& rank);

/// CPUs that the rank used on average since its start; 0 without a sample.
double cpus_used(const record::Snapshot& rank);

}  // namespace lockstep::report
