// Pieces of SVG, for the report's pictures.
//
// Threads: safe from any.
#pragma once

#include <array>
#include <string>

namespace lockstep::report {

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
