#include "runtime/data/plan/steps/rank_balancer.h"

#include <algorithm>
#include <numeric>

namespace lockstep::data {
namespace {

// The slowest rank may take this much longer than the mean: less than can be measured of a step.
constexpr double kCloseEnough = 5e-4;
// Rounds in which the slow ranks are paired with the fast ones.
constexpr std::size_t kRounds = 10;

}  // namespace

RankBalancer::RankBalancer(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      slowness_(ranks_, 1.0),
      speed_of_all_(options.ranks),
      fastest_(1),
      times_(ranks_),
      tree_(ranks_),
      lists_(ranks_),
      by_time_(ranks_),
      begins_(ranks_ + 1) {
  if (options.speeds.empty()) return;
  speed_of_all_ = std::accumulate(options.speeds.begin(), options.speeds.end(), 0.0);
  fastest_ = *std::max_element(options.speeds.begin(), options.speeds.end());
  const double mean = speed_of_all_ / options.ranks;
  for (std::size_t rank = 0; rank < ranks_; ++rank) slowness_[rank] = mean / options.speeds[rank];
}

double RankBalancer::mean() const {
  return std::accumulate(times_.begin(), times_.end(), 0.0) / static_cast<double>(ranks_);
}

bool RankBalancer::uneven() {
  slowest_ = *std::max_element(times_.begin(), times_.end());
  return slowest_ > mean() * (1 + kCloseEnough);
}

void RankBalancer::deal(std::span<const double> costs) {
  costs_ = costs;
  rank_of_.resize(costs.size());
  std::fill(times_.begin(), times_.end(), 0.0);
  tree_.fill(times_);
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const std::size_t rank = tree_.least();
    rank_of_[i] = static_cast<std::uint32_t>(rank);
    times_[rank] += costs[i] * slowness_[rank];
    tree_.set(rank, times_[rank]);
  }
}

bool RankBalancer::add_if_free(double cost) {
  const std::size_t rank = tree_.least();
  const double time = times_[rank] + cost * slowness_[rank];
  if (time > slowest_) return false;
  times_[rank] = time;
  tree_.set(rank, time);
  return true;
}

void RankBalancer::exchange() {
  if (ranks_ > 1 && !costs_.empty()) {
    // Not below what the greatest load takes alone.
    const double limit = std::max(mean() * (1 + kCloseEnough), costs_.front() * slowness_[rank_of_.front()]);
    if (*std::max_element(times_.begin(), times_.end()) > limit) exchange_lists(limit);
  }
  group_by_rank();
}

void RankBalancer::exchange_lists(double limit) {
  for (List& list : lists_) list.clear();
  for (std::uint32_t i = 0; i < rank_of_.size(); ++i) lists_[rank_of_[i]].push_back(i);
  std::iota(by_time_.begin(), by_time_.end(), 0U);
  order_ranks();
  std::size_t shift = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    bool improved = false;
    std::size_t slow = 0;
    for (; slow < ranks_ && times_[by_time_[slow]] > limit; ++slow) {
      const std::size_t half = std::max<std::size_t>(1, ranks_ - std::max(slow + 1, ranks_ / 2));
      const std::size_t fast = ranks_ - 1 - (slow + shift) % half;
      if (fast <= slow) break;
      improved |= improve(by_time_[slow], by_time_[fast], limit);
    }
    if (slow == 0) return;
    // The same pairs would fail again.
    if (!improved && ++shift == ranks_) return;
    order_ranks();
  }
}

bool RankBalancer::improve(std::size_t from, std::size_t to, double good_enough) {
  Swap swap{times_[from] * (1 - 1e-9), 0, 0};
  if (!find_swap(from, to, good_enough, swap)) return false;
  List& giver = lists_[from];
  List& taker = lists_[to];
  const auto insert = [](List& list, std::uint32_t load) {
    list.insert(std::lower_bound(list.begin(), list.end(), load), load);
  };
  const std::uint32_t given = giver[swap.give];
  double moved = costs_[given];
  giver.erase(giver.begin() + static_cast<std::ptrdiff_t>(swap.give));
  if (swap.take < taker.size()) {
    const std::uint32_t taken = taker[swap.take];
    moved -= costs_[taken];
    taker.erase(taker.begin() + static_cast<std::ptrdiff_t>(swap.take));
    insert(giver, taken);
    rank_of_[taken] = static_cast<std::uint32_t>(from);
  }
  insert(taker, given);
  rank_of_[given] = static_cast<std::uint32_t>(to);
  times_[from] -= moved * slowness_[from];
  times_[to] += moved * slowness_[to];
  return true;
}

// Looks for the load of `from` and the one of `to` (or none) whose exchange makes the slower of the two
// fastest. Both lists begin with the greatest, so the ideal partner only moves on. Takes the first that is
// good enough.
bool RankBalancer::find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const {
  const List& gives = lists_[from];
  const List& takes = lists_[to];
  const double slow_from = slowness_[from];
  const double slow_to = slowness_[to];
  const double ideal = (times_[from] - times_[to]) / (slow_from + slow_to);
  const double before = best.slower;
  std::size_t j = 0;
  for (std::size_t i = 0; i < gives.size(); ++i) {
    const double given = costs_[gives[i]];
    while (j < takes.size() && costs_[takes[j]] > given - ideal) ++j;
    for (std::size_t k = j > 0 ? j - 1 : 0; k <= j; ++k) {
      const double taken = k == takes.size() ? 0 : costs_[takes[k]];
      const double moved = given - taken;
      if (moved <= 0) continue;
      const double slower = std::max(times_[from] - moved * slow_from, times_[to] + moved * slow_to);
      if (slower >= best.slower) continue;
      best = {slower, i, k};
      if (slower <= good_enough) return true;
    }
  }
  return best.slower < before;
}

// Slowest first; equal ones by number, so that the order is the same everywhere.
void RankBalancer::order_ranks() {
  std::sort(by_time_.begin(), by_time_.end(), [this](std::uint32_t x, std::uint32_t y) {
    return times_[x] != times_[y] ? times_[x] > times_[y] : x < y;
  });
}

void RankBalancer::group_by_rank() {
  std::fill(begins_.begin(), begins_.end(), 0);
  for (const std::uint32_t rank : rank_of_) ++begins_[rank];
  std::uint32_t end = 0;
  for (std::uint32_t& count : begins_) count = end += count;
  by_rank_.resize(rank_of_.size());
  for (std::size_t i = rank_of_.size(); i-- > 0;)
    by_rank_[--begins_[rank_of_[i]]] = static_cast<std::uint32_t>(i);
}

}  // namespace lockstep::data
