// Compares two runs: where the time of a step changed.
//
// Threads: safe from any.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

/// A table: each figure of the run, of the baseline, and the change in percent.
std::string comparison_text(const Run& run, const Run& baseline);

/// {"run":{"step_ms":…,…},"baseline":{…},"change":{"step_ms":-0.12,…}}; a change without a baseline is null.
nlohmann::json comparison_json(const Run& run, const Run& baseline);

}  // namespace lockstep::report
