// The report as one HTML page that needs nothing else: no server, no script, no file beside it.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

std::string to_html(const Run& run);

}  // namespace lockstep::report
