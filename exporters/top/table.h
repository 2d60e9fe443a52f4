// The table of lockstep-top, and the same as JSON.
//
// Threads: safe from any.
#pragma once

#include <cstddef>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exporters/top/live.h"

namespace lockstep::top {

/// The space for the table, and whether a terminal shows it.
struct Space {
  std::size_t columns = std::numeric_limits<std::size_t>::max();
  std::size_t rows = std::numeric_limits<std::size_t>::max();
  bool colours = false;
};

/// The lines of the table, cut to `space`. Phases that took no time on any rank have no column. If there are more
/// ranks than rows, those with the longest own time are shown. With colours, the heading is bold, a rank that works
/// 15 % longer than the median rank is red, and one that does not run is dim.
std::vector<std::string> to_lines(const Live& live, const Space& space);

nlohmann::json to_json(const Live& live);

}  // namespace lockstep::top
