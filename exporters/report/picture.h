// The report's picture, as SVG to stand in a page: a bar per rank with its phases, and how long each rank
// worked in each of the last steps. The colours are told apart with any kind of colour vision, and every area
// says its number in a tooltip.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

/// A stacked bar per rank: milliseconds per step by phase.
std::string phase_bars(const Run& run);

/// Rank × step: own time of each of the last steps against the median of the ranks in that step.
std::string step_heatmap(const Run& run);

/// Text for use in HTML and SVG.
std::string escape(const std::string& text);

}  // namespace lockstep::report
