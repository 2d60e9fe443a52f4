// The median of values, and the fit of measured times of work to a * tokens + b * squares, the form of the planner's cost:
// `squares` is the sum of the squared lengths of the samples that the tokens belong to.
//
// Threads: safe from any.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <vector>

namespace lockstep {

/// For an even number of values, the mean of the two in the middle. 0 if there are none.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

struct MeasuredWork {
  double tokens = 0;
  double squares = 0;
  double time = 0;
};

struct CostFit {
  double a = 0;
  double b = 0;

  double of(const MeasuredWork& work) const { return a * work.tokens + b * work.squares; }
  /// a ÷ b; infinite if time does not depend on the squares.
  double ratio() const { return b > 0 ? a / b : std::numeric_limits<double>::infinity(); }
};

/// The a and b, neither negative, of the smallest sum of squared errors. Both 0 without work.
inline CostFit fit_cost(const std::vector<MeasuredWork>& measured) {
  double tt = 0;
  double ts = 0;
  double ss = 0;
  double ty = 0;
  double sy = 0;
  for (const MeasuredWork& work : measured) {
    tt += work.tokens * work.tokens;
    ts += work.tokens * work.squares;
    ss += work.squares * work.squares;
    ty += work.tokens * work.time;
    sy += work.squares * work.time;
  }
  const double determinant = tt * ss - ts * ts;
  // Samples of one length: only the sum of both terms is known, and it is the tokens'.
  if (determinant <= 1e-12 * tt * ss) return {.a = tt > 0 ? std::max(0.0, ty / tt) : 0, .b = 0};
  const CostFit fit{.a = (ty * ss - sy * ts) / determinant, .b = (sy * tt - ty * ts) / determinant};
  if (fit.a < 0) return {.a = 0, .b = std::max(0.0, sy / ss)};
  if (fit.b < 0) return {.a = std::max(0.0, ty / tt), .b = 0};
  return fit;
}

}  // namespace lockstep
