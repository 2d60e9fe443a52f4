#include "runtime/data/plan/outlier_room.h"

#include <algorithm>
#include <cmath>

namespace lockstep::data {
namespace {

// An outlier costs this much more than a rank's mean share of a step.
constexpr double kOutlier = 1.02;
// Where more of the tokens than this are in outliers, they are no exception, and none is treated as one.
constexpr double kMostOutliers = 0.05;
// Of a step's part of the randomness budget, what its other samples leave to outliers.
constexpr double kLeftToOutliers = 0.25;
// So much more than at the mean a step may stray that outliers are released into.
constexpr double kMargin = 2;
// The last outliers leave this many steps before the end, for each step that they take: composing a step
// within the budget may fail.
constexpr double kEarly = 1.25;

}  // namespace

OutlierRoom::OutlierRoom(const PlanOptions& options)
    : cost_(options.cost),
      cap_(options.cap),
      ranks_(static_cast<std::size_t>(options.ranks)),
      none_(options.padded || options.order == Order::sequential || options.ranks == 1) {
}

void OutlierRoom::begin(std::span<const Item> items, const RandomnessBudget& budget, double share,
                        double step) {
  waiting_.clear();
  tokens_ = 0;
  due_ = 0;
  step_ = step;
  most_ = kMostWaiting * ranks_;
  longest_common_ = std::numeric_limits<std::uint32_t>::max();
  if (none_) return;
  const double most = kOutlier * share * (cost_.a + cost_.b * budget.mean_by_token());
  if (cost_.of(cap_) <= most) return;
  // The longest sample that is no outlier.
  std::uint32_t low = 0;
  auto high = static_cast<std::uint32_t>(cap_);
  while (high - low > 1) {
    const std::uint32_t middle = low + (high - low) / 2;
    (cost_.of(middle) <= most ? low : high) = middle;
  }
  std::uint64_t common = 0;
  std::uint64_t outliers = 0;
  std::size_t outlier_count = 0;
  for (const Item& item : items) {
    if (item.length > low) {
      outliers += item.length;
      ++outlier_count;
    } else {
      common += item.length;
    }
  }
  if (common == 0 || static_cast<double>(outliers) > kMostOutliers * static_cast<double>(outliers + common))
    return;
  longest_common_ = low;
  common_mean_ = static_cast<double>(common) / static_cast<double>(items.size() - outlier_count);
}

// How far the mean of a step strays that has so many outliers, as long as those that wait, and is filled up
// with others.
double OutlierRoom::strays(double count, const RandomnessBudget& budget) const {
  const double outliers = count * static_cast<double>(tokens_) / static_cast<double>(waiting_.size());
  const double samples = count + std::max(0.0, step_ - outliers) / common_mean_;
  const double deviation = std::max(step_, outliers) / samples - budget.mean();
  return deviation * deviation;
}

void OutlierRoom::look_ahead(double steps, const RandomnessBudget& budget) {
  due_ = 0;
  if (longest_common_ == std::numeric_limits<std::uint32_t>::max()) return;
  const double share = kLeftToOutliers * budget.share(step_ / budget.mean());
  const double saved = std::max(0.0, budget.saved());
  // By how much a step's mean grows for each: its square, over so many steps, must be in the budget.
  const double each = (static_cast<double>(longest_common_) - common_mean_) * budget.mean() / step_;
  const double by_budget = std::sqrt(steps * (saved + steps * share)) / std::max(1e-9, each);
  most_ = static_cast<std::size_t>(std::clamp(by_budget, 1.0, static_cast<double>(kMostWaiting * ranks_)));

  if (waiting_.empty()) return;
  // The fewest steps that can take what waits.
  const auto count = static_cast<double>(waiting_.size());
  double needed = std::ceil(count / static_cast<double>(ranks_));
  while (needed + 1 < steps && needed < count &&
         kMargin * needed * strays(count / needed, budget) > saved + needed * share) {
    needed = std::ceil(needed * 1.1);
  }
  if (steps <= 1 + needed * (needed > 1 ? kEarly : 1))
    due_ = static_cast<std::size_t>(std::ceil(count / needed));
}

void OutlierRoom::add(const Item& item) {
  waiting_.push_back(item);
  tokens_ += item.length;
}

void OutlierRoom::release(std::size_t count, std::vector<Item>& out) {
  std::sort(waiting_.begin(), waiting_.end(), longer);
  const auto end = waiting_.begin() + static_cast<std::ptrdiff_t>(count);
  for (auto item = waiting_.begin(); item != end; ++item) tokens_ -= item->length;
  out.insert(out.end(), waiting_.begin(), end);
  waiting_.erase(waiting_.begin(), end);
}

}  // namespace lockstep::data
