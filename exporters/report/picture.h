// The report's pictures, as SVG for a page: a bar per rank with its phases, and how long each rank worked in
// each of the last steps. The colours can be told apart with any kind of colour vision, and every area shows
// its number in a tooltip.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <string>

#include "exporters/report/run.h"

namespace lockstep::report {

/// How pages call a phase, in the order of Phase.
inline constexpr std::array<const char*, record::kPhases> kPhaseTitles = {
    "waiting for data", "copy to device", "forward",    "backward",
    "communication",    "optimizer",      "checkpoint", "other"};

/// A stacked bar per rank: milliseconds per step by phase.
std::string phase_bars(const Run& run);

/// Rank × step: own time in each of the last steps, relative to the median of all ranks in that step.
std::string step_heatmap(const Run& run);

}  // namespace lockstep::report
