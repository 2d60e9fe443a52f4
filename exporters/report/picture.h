// The report's pictures, as SVG for a page: a bar per rank with its phases, and how long each rank worked in each of the
// last steps; and the pieces of SVG that they are made of. The colours can be told apart with any kind of colour vision,
// and every area shows its number in a tooltip.
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

/// The palette of Okabe and Ito, which can be told apart with any kind of colour vision.
inline constexpr std::array<const char*, 8> kColours = {"#E69F00", "#F0E442", "#56B4E9", "#0072B2",
                                                        "#D55E00", "#009E73", "#CC79A7", "#999999"};

/// Escapes text for HTML and SVG.
std::string escape(const std::string& text);

/// A distance between axis marks that gives at most eight marks: 1, 2 or 5 times a power of ten.
double mark_distance(double maximum);

std::string open_svg(double width, double height, const std::string& label);

/// `anchor` is start, middle or end.
std::string text_at(double x, double y, const char* anchor, const std::string& text, const char* extra = "");

/// Without its end, so that a title can follow.
std::string rectangle(double x, double y, double width, double height, const std::string& look);

}  // namespace lockstep::report
