#include "runtime/data/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "common/median.h"

namespace lockstep::data {
namespace {

constexpr std::size_t kMinSteps = 8;
constexpr int kFitRounds = 30;
// Huber's constant: residuals beyond this many standard deviations count linearly.
constexpr double kHuber = 1.345;
// Standard deviations per median absolute deviation of a normal distribution.
constexpr double kNormalMad = 1.4826;
// Columns are too similar if a pivot of their normal matrix is below this share of its diagonal.
constexpr double kMinPivot = 1e-9;

using Row = std::array<double, 3>;  // 1, tokens, squares; each scaled to a mean of 1

// Solves the weighted normal equations for the columns in use by Gauss-Jordan elimination. `variance`
// becomes the diagonal of the inverse.
bool solve(const std::vector<Row>& rows, const std::vector<double>& y, const std::vector<double>& weights,
           const std::array<bool, 3>& use, Row& solution, Row& variance) {
  std::array<std::array<double, 7>, 3> m{};
  for (std::size_t i = 0; i < 3; ++i) m[i][4 + i] = 1;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    for (std::size_t i = 0; i < 3; ++i) {
      for (std::size_t j = 0; j < 3; ++j) m[i][j] += weights[r] * rows[r][i] * rows[r][j];
      m[i][3] += weights[r] * rows[r][i] * y[r];
    }
  }
  solution = {};
  variance = {};
  for (std::size_t i = 0; i < 3; ++i) {
    if (!use[i]) continue;
    double diagonal = 0;
    for (std::size_t r = 0; r < rows.size(); ++r) diagonal += weights[r] * rows[r][i] * rows[r][i];
    if (!(m[i][i] > kMinPivot * diagonal)) return false;
    const double pivot = m[i][i];
    for (double& value : m[i]) value /= pivot;
    for (std::size_t j = 0; j < 3; ++j) {
      if (j == i || !use[j]) continue;
      const double factor = m[j][i];
      for (std::size_t k = 0; k < 7; ++k) m[j][k] -= factor * m[i][k];
    }
  }
  for (std::size_t i = 0; i < 3; ++i) {
    if (!use[i]) continue;
    solution[i] = m[i][3];
    variance[i] = m[i][4 + i];
  }
  return true;
}

struct Solution {
  Row solution{};
  Row variance{};
  std::vector<double> weights;
  std::vector<double> residuals;
  double scale = 0;
};

bool solve_robustly(const std::vector<Row>& rows, const std::vector<double>& y,
                    const std::array<bool, 3>& use, Solution& solved) {
  solved.weights.assign(rows.size(), 1.0);
  solved.residuals.resize(rows.size());
  for (int round = 0; round < kFitRounds; ++round) {
    const Row before = solved.solution;
    if (!solve(rows, y, solved.weights, use, solved.solution, solved.variance)) return false;
    std::vector<double> sizes(rows.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      double fitted = 0;
      for (std::size_t i = 0; i < 3; ++i) fitted += solved.solution[i] * rows[r][i];
      solved.residuals[r] = y[r] - fitted;
      sizes[r] = std::abs(solved.residuals[r]);
    }
    solved.scale = std::max(kNormalMad * median(sizes), 1e-12);
    double change = 0;
    for (std::size_t i = 0; i < 3; ++i) change = std::max(change, std::abs(solved.solution[i] - before[i]));
    if (round > 0 && change < 1e-10) break;
    for (std::size_t r = 0; r < rows.size(); ++r) {
      solved.weights[r] = std::min(1.0, kHuber * solved.scale / std::max(sizes[r], 1e-300));
    }
  }
  return true;
}

}  // namespace

CostFit::CostFit(std::size_t capacity) : capacity_(std::max(capacity, kMinSteps)) {
}

void CostFit::add(double tokens, double squares, double seconds) {
  const auto good = [](double value) { return std::isfinite(value) && value > 0; };
  if (!good(tokens) || !good(squares) || !good(seconds)) return;
  if (steps_.size() < capacity_) {
    steps_.push_back({tokens, squares, seconds});
  } else {
    steps_[next_] = {tokens, squares, seconds};
    next_ = (next_ + 1) % capacity_;
  }
}

std::optional<FittedCost> CostFit::fit() const {
  if (steps_.size() < kMinSteps) return std::nullopt;
  MeasuredStep mean{0, 0, 0};
  for (const MeasuredStep& step : steps_) {
    mean.tokens += step.tokens / static_cast<double>(steps_.size());
    mean.squares += step.squares / static_cast<double>(steps_.size());
    mean.seconds += step.seconds / static_cast<double>(steps_.size());
  }
  std::vector<Row> rows;
  std::vector<double> y;
  for (const MeasuredStep& step : steps_) {
    rows.push_back({1, step.tokens / mean.tokens, step.squares / mean.squares});
    y.push_back(step.seconds / mean.seconds);
  }
  // Tries fits with fewer terms if a term is negative or cannot be separated from the others. The fixed
  // term is left out first.
  Solution solved;
  bool found = false;
  for (const std::array<bool, 3> use :
       {std::array{true, true, true}, std::array{false, true, true}, std::array{true, true, false},
        std::array{false, true, false}, std::array{false, false, true}}) {
    solved = {};
    if (!solve_robustly(rows, y, use, solved)) continue;
    if (std::all_of(solved.solution.begin(), solved.solution.end(), [](double part) { return part >= 0; }) &&
        solved.solution[1] + solved.solution[2] > 0) {
      found = true;
      break;
    }
  }
  if (!found) return std::nullopt;
  FittedCost fitted;
  fitted.steps = steps_.size();
  fitted.fixed = solved.solution[0] * mean.seconds;
  const double per_token = mean.seconds / mean.tokens;
  const double per_square = mean.seconds / mean.squares;
  fitted.cost = {solved.solution[1] * per_token, solved.solution[2] * per_square};
  fitted.error_a = std::sqrt(std::max(0.0, solved.variance[1])) * solved.scale * per_token;
  fitted.error_b = std::sqrt(std::max(0.0, solved.variance[2])) * solved.scale * per_square;
  std::vector<double> errors;
  for (std::size_t r = 0; r < rows.size(); ++r) {
    errors.push_back(std::abs(solved.residuals[r]) / y[r]);
    fitted.outliers += solved.weights[r] < 0.5 ? 1 : 0;
  }
  fitted.error = median(std::move(errors));
  return fitted;
}

}  // namespace lockstep::data
