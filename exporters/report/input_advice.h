// Advice on the input: where the loader's threads lack processors, and where data is read in small pieces or more than once.
//
// Threads: safe from any.
#pragma once

#include <optional>

#include "exporters/report/advice.h"

namespace lockstep::report {

/// The most certain finding; none without samples. `waiting` is the typical share of a
/// step that ranks wait for data.
std::optional<Advice> input_advice(const Run& run, double waiting);

/// Below this share of the step, input is not worth the effort.
inline constexpr double kDataWait = 0.05;

}  // namespace lockstep::report
