// The report as one self-contained HTML page: it needs no server, script or other file.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

std::string to_html(const Run& run);

/// The page up to its first picture.
std::string page_begin(const std::string& title, const std::string& state);

}  // namespace lockstep::report
