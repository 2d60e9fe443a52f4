// Computes the median.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <vector>

namespace lockstep {

/// For an even number of values, the mean of the two in the middle. 0 if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace lockstep
