#include "runtime/data/plan/steps/rank_balancer.h"

#include <algorithm>
#include <numeric>

namespace lockstep::data {
namespace {

// The slowest rank may take this much longer than the mean. It is too little to measure in a step.
constexpr double kCloseEnough = 5e-4;
// Rounds that pair slow ranks with fast ones.
constexpr std::size_t kRounds = 10;

}  // namespace

RankBalancer::RankBalancer(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      slowness_(ranks_, 1.0),
      speed_of_all_(options.ranks),
      speed_of_fastest_(1),
      times_(ranks_),
      tree_(ranks_),
      lists_(ranks_),
      by_time_(ranks_) {
  if (options.speeds.empty()) return;
  speed_of_all_ = std::accumulate(options.speeds.begin(), options.speeds.end(), 0.0);
  speed_of_fastest_ = *std::max_element(options.speeds.begin(), options.speeds.end());
  const double mean = speed_of_all_ / options.ranks;
  for (std::size_t rank = 0; rank < ranks_; ++rank) slowness_[rank] = mean / options.speeds[rank];
}

double RankBalancer::mean() const {
  return std::accumulate(times_.begin(), times_.end(), 0.0) / static_cast<double>(ranks_);
}

bool RankBalancer::uneven() {
  longest_time_ = *std::max_element(times_.begin(), times_.end());
  return longest_time_ > mean() * (1 + kCloseEnough);
}

void RankBalancer::assign(std::span<const double> costs) {
  costs_ = costs;
  for (LoadList& list : lists_) list.clear();
  std::fill(times_.begin(), times_.end(), 0.0);
  tree_.fill(times_);
  for (std::uint32_t load = 0; load < costs.size(); ++load) {
    const std::size_t rank = tree_.cheapest();
    lists_[rank].push_back(load);
    times_[rank] += costs[load] * slowness_[rank];
    tree_.set(rank, times_[rank]);
  }
}

bool RankBalancer::add_if_free(double cost) {
  const std::size_t rank = tree_.cheapest();
  const double time = times_[rank] + cost * slowness_[rank];
  if (time > longest_time_) return false;
  times_[rank] = time;
  tree_.set(rank, time);
  return true;
}

void RankBalancer::exchange() {
  if (ranks_ == 1 || costs_.empty()) return;
  // No exchange can get below the time of the costliest load, which assign() gave to rank 0.
  const double limit = std::max(mean() * (1 + kCloseEnough), costs_.front() * slowness_.front());
  if (*std::max_element(times_.begin(), times_.end()) <= limit) return;
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
    // Without a change the same pairs would fail again: pair the ranks in another way.
    if (!improved && ++shift == ranks_) return;
    order_ranks();
  }
}

bool RankBalancer::improve(std::size_t from, std::size_t to, double good_enough) {
  Swap swap{times_[from] * (1 - 1e-9), 0, 0};
  if (!find_swap(from, to, good_enough, swap)) return false;
  LoadList& giver = lists_[from];
  LoadList& taker = lists_[to];
  const auto insert = [](LoadList& list, std::uint32_t load) {
    list.insert(std::lower_bound(list.begin(), list.end(), load), load);
  };
  const std::uint32_t give = giver[swap.give];
  double moved = costs_[give];
  giver.erase(giver.begin() + static_cast<std::ptrdiff_t>(swap.give));
  if (swap.take < taker.size()) {
    const std::uint32_t take = taker[swap.take];
    moved -= costs_[take];
    taker.erase(taker.begin() + static_cast<std::ptrdiff_t>(swap.take));
    insert(giver, take);
  }
  insert(taker, give);
  times_[from] -= moved * slowness_[from];
  times_[to] += moved * slowness_[to];
  return true;
}

// Finds a load of `from` and a load of `to` (or none) whose exchange gives the slower one of the two ranks
// the shortest time. Returns the first exchange that is good enough. Both lists are in descending order, so
// the best partner's place only grows.
bool RankBalancer::find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const {
  const LoadList& gives = lists_[from];
  const LoadList& takes = lists_[to];
  const double slow_from = slowness_[from];
  const double slow_to = slowness_[to];
  const double ideal = (times_[from] - times_[to]) / (slow_from + slow_to);
  const double before = best.time;
  std::size_t j = 0;
  for (std::size_t i = 0; i < gives.size(); ++i) {
    const double give_cost = costs_[gives[i]];
    while (j < takes.size() && costs_[takes[j]] > give_cost - ideal) ++j;
    for (std::size_t k = j > 0 ? j - 1 : 0; k <= j; ++k) {
      const double take_cost = k == takes.size() ? 0 : costs_[takes[k]];
      const double moved = give_cost - take_cost;
      if (moved <= 0) continue;
      const double time = std::max(times_[from] - moved * slow_from, times_[to] + moved * slow_to);
      if (time >= best.time) continue;
      best = {time, i, k};
      if (time <= good_enough) return true;
    }
  }
  return best.time < before;
}

// Sorts the ranks, slowest first. Equal ones are sorted by number, so that the order is the same everywhere.
void RankBalancer::order_ranks() {
  std::sort(by_time_.begin(), by_time_.end(), [this](std::uint32_t x, std::uint32_t y) {
    return times_[x] != times_[y] ? times_[x] > times_[y] : x < y;
  });
}

}  // namespace lockstep::data
