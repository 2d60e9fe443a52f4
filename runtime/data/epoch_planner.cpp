#include "runtime/data/epoch_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep::data {
namespace {

// What a step takes of its capacity. The rest is the slack that lets a rank of long samples hold fewer tokens
// than one of short samples; it costs 1.5 % more steps, each as much shorter.
constexpr double kFill = 0.985;
// A step that ends below this looks further into the pool for samples that fit.
constexpr double kLeastFill = 0.982;
// An outlier costs this much more than a rank's mean share of a step.
constexpr double kOutlier = 1.02;
// Where more of the tokens than this are in outliers, they are no exception, and none is treated as one.
constexpr double kMostOutliers = 0.05;
// Of the randomness budget, that the choice of samples may use; what does not fit in the end moves the mean a
// little.
constexpr double kBudgetUse = 0.97;
// The pool looks this many samples ahead, at least.
constexpr std::size_t kLookAhead = 1024;

std::uint64_t tokens_of(std::span<const Item> items) {
  return std::accumulate(items.begin(), items.end(), std::uint64_t{0},
                         [](std::uint64_t sum, const Item& item) { return sum + item.length; });
}

bool shorter(const Item& x, const Item& y) {
  return longer(y, x);
}

}  // namespace

EpochPlanner::EpochPlanner(std::span<const std::uint32_t> lengths, const PlanOptions& options)
    : lengths_(lengths),
      options_(options),
      capacity_(options.cap * static_cast<std::uint64_t>(options.ranks) *
                static_cast<std::uint64_t>(options.accumulate)),
      fill_(kFill),
      order_(lengths.size(), options.order, options.seed, options.epoch),
      packer_(options),
      budget_(lengths, kBudgetUse * options.randomness),
      random_(options.seed, options.epoch, ~std::uint64_t{0}),
      tokens_left_(std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0})) {
  const double share = kFill * static_cast<double>(options.cap) * options.accumulate;
  outlier_cost_ = kOutlier * share * (options.cost.a + options.cost.b * budget_.mean_by_token());
  double outliers = 0;
  for (const std::uint32_t length : lengths) outliers += options.cost.of(length) > outlier_cost_ ? length : 0;
  if (options.padded || options.order == Order::sequential || options.ranks == 1 ||
      outliers > kMostOutliers * static_cast<double>(tokens_left_)) {
    outlier_cost_ = std::numeric_limits<double>::infinity();
  }
}

bool EpochPlanner::take_next(Item& item) {
  if (group_next_ == group_.size()) {
    group_next_ = 0;
    if (!order_.next_group(group_)) {
      group_.clear();
      return false;
    }
  }
  const SampleId id = group_[group_next_++];
  item = {id, lengths_[id]};
  return true;
}

// Fills the pool up to so many tokens and kLookAhead samples; outliers step aside.
void EpochPlanner::draw(std::uint64_t tokens) {
  Item item{};
  while ((pool_tokens_ < tokens || pool_.size() < kLookAhead) && take_next(item)) {
    if (options_.cost.of(item.length) > outlier_cost_) {
      outliers_.push_back(item);
    } else {
      pool_.push_back(item);
      pool_tokens_ += item.length;
    }
  }
}

std::uint64_t EpochPlanner::target() const {
  return static_cast<std::uint64_t>(fill_ * static_cast<double>(capacity_));
}

// How many of the pool's first samples have no more than so many tokens together; at least one.
std::size_t EpochPlanner::front(std::uint64_t tokens) const {
  std::uint64_t sum = 0;
  std::size_t count = 0;
  while (count < pool_.size() && (count == 0 || sum + pool_[count].length <= tokens))
    sum += pool_[count++].length;
  return count;
}

// Outliers of similar cost, one for each rank; all that wait when no full step would come after this one.
void EpochPlanner::release_outliers() {
  const auto ranks = static_cast<std::size_t>(options_.ranks);
  const bool last_chance = tokens_left_ < 2 * capacity_;
  if (outliers_.empty() || (outliers_.size() < ranks && !last_chance)) return;
  std::sort(outliers_.begin(), outliers_.end(), longer);
  const std::size_t count = std::min(outliers_.size(), ranks);
  chosen_.assign(outliers_.begin(), outliers_.begin() + static_cast<std::ptrdiff_t>(count));
  outliers_.erase(outliers_.begin(), outliers_.begin() + static_cast<std::ptrdiff_t>(count));
  pinned_ = count;
}

bool EpochPlanner::next_step(Plan& plan) {
  if (tokens_left_ == 0) return false;
  draw(2 * capacity_);
  chosen_.clear();
  left_.clear();
  pinned_ = 0;
  full_step_ = tokens_left_ > capacity_;
  packer_.clear();
  if (options_.padded) {
    pack_padded();
  } else {
    release_outliers();
    if (full_step_) {
      const std::uint64_t pinned = tokens_of(chosen_);
      const std::size_t count = pinned < target() ? front(target() - pinned) : 0;
      chosen_.insert(chosen_.end(), pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(count));
      pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(count));
      keep_within_budget();
    } else {
      chosen_.insert(chosen_.end(), pool_.begin(), pool_.end());
      pool_.clear();
      chosen_.insert(chosen_.end(), outliers_.begin(), outliers_.end());
      outliers_.clear();
    }
    pack();
  }
  // What did not fit is first in line.
  pool_.insert(pool_.begin(), left_.begin(), left_.end());
  pool_tokens_ = tokens_of(pool_);
  const std::uint64_t placed = packer_.tokens();
  budget_.spend(placed, packer_.samples());
  tokens_left_ -= placed;
  packer_.append_to(plan, random_.below(static_cast<std::uint64_t>(options_.ranks)));
  return true;
}

// Where the step's mean length is out of the budget, exchanges short samples for one that is as long as they
// are together: the number of samples changes, and so the mean, while the tokens stay. Short ones come from
// the pool when the mean is too great, and go there when it is too small.
void EpochPlanner::keep_within_budget() {
  if (options_.order == Order::sequential) return;
  for (int round = 0; round < 4; ++round) {
    const std::uint64_t tokens = tokens_of(chosen_);
    const std::size_t samples = chosen_.size();
    if (samples == 0 || budget_.allows(tokens, samples)) return;
    const double wanted = static_cast<double>(tokens) / budget_.nearest_mean(tokens, samples);
    const auto change = static_cast<std::size_t>(std::ceil(std::abs(wanted - static_cast<double>(samples))));
    if (static_cast<double>(samples) < wanted) {
      exchange_short_for_long(pool_, 0, chosen_, pinned_, change + 1);
    } else {
      exchange_short_for_long(chosen_, pinned_, pool_, 0, change + 1);
    }
  }
}

// Moves the `count` shortest of `shorts` to `longs`, and from there the one whose length is nearest to theirs
// together. The first items of each stay where they are.
void EpochPlanner::exchange_short_for_long(std::vector<Item>& shorts, std::size_t shorts_first,
                                           std::vector<Item>& longs, std::size_t longs_first,
                                           std::size_t count) {
  const auto begin = shorts.begin() + static_cast<std::ptrdiff_t>(shorts_first);
  if (longs.size() <= longs_first || shorts.end() - begin <= static_cast<std::ptrdiff_t>(count)) return;
  const auto end = begin + static_cast<std::ptrdiff_t>(count);
  std::partial_sort(begin, end, shorts.end(), shorter);
  const std::uint64_t sum = tokens_of({begin, end});
  const auto distance = [sum](const Item& item) {
    return item.length > sum ? item.length - sum : sum - item.length;
  };
  const auto counterpart =
      std::min_element(longs.begin() + static_cast<std::ptrdiff_t>(longs_first), longs.end(),
                       [&](const Item& x, const Item& y) {
                         return distance(x) != distance(y) ? distance(x) < distance(y) : x.id < y.id;
                       });
  std::vector<Item> moved(begin, end);
  *begin = *counterpart;
  shorts.erase(begin + 1, end);
  *counterpart = moved.back();
  longs.insert(longs.end(), moved.begin(), moved.end() - 1);
}

void EpochPlanner::pack() {
  std::sort(chosen_.begin(), chosen_.end(), longer);
  double enough = std::numeric_limits<double>::infinity();
  if (full_step_ && pinned_ > 0) {
    enough = 0;
    for (const Item& item : chosen_) enough += options_.cost.of(item.length);
    enough *= kOutlier / options_.ranks;
  }
  packer_.place(chosen_, enough, left_);
  const auto least = static_cast<std::uint64_t>(kLeastFill * static_cast<double>(capacity_));
  // One sample that outweighs the other ranks' shares makes them wait anyway: then they may as well be full.
  const bool waits = full_step_ && packer_.greatest_is_one_sample();
  if (full_step_ && (packer_.tokens() < least || waits)) top_up(waits ? capacity_ : target(), !waits);
  packer_.exchange();
}

// Looks through the whole pool, longest first, for samples that fit into what room is left, up to so many
// tokens.
void EpochPlanner::top_up(std::uint64_t most, bool lengthen) {
  std::uint64_t room = packer_.most_room();
  std::vector<std::size_t> candidates;
  candidates.reserve(pool_.size());
  for (std::size_t i = 0; i < pool_.size(); ++i) {
    if (pool_[i].length <= room) candidates.push_back(i);
  }
  std::sort(candidates.begin(), candidates.end(),
            [&](std::size_t x, std::size_t y) { return longer(pool_[x], pool_[y]); });
  std::vector<char> gone(pool_.size());
  std::uint64_t tokens = packer_.tokens();
  std::size_t samples = packer_.samples();
  for (const std::size_t candidate : candidates) {
    const Item item = pool_[candidate];
    if (item.length > room || tokens + item.length > most ||
        !budget_.allows_adding(item.length, tokens, samples)) {
      continue;
    }
    if (!packer_.place_where_it_fits(item, lengthen)) continue;
    tokens += item.length;
    ++samples;
    gone[candidate] = 1;
    room = packer_.most_room();
    if (room == 0) break;
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < pool_.size(); ++i) {
    if (gone[i] == 0) pool_[kept++] = pool_[i];
  }
  pool_.resize(kept);
}

// Takes as much of the pool's front as its padding lets fit; `fill_` follows what did.
void EpochPlanner::pack_padded() {
  const std::size_t batches = packer_.micro_batches();
  std::size_t count = front(target());
  if (tokens_left_ <= target()) count = pool_.size();
  for (;;) {
    chosen_.assign(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(count));
    std::sort(chosen_.begin(), chosen_.end(), longer);
    const std::size_t needed = packer_.place_padded(chosen_);
    const double ratio = static_cast<double>(batches) / static_cast<double>(std::max<std::size_t>(needed, 1));
    if (needed <= batches) {
      if (full_step_) fill_ = std::min(1.0, fill_ * std::min(1.25, ratio) * 0.995);
      break;
    }
    fill_ *= ratio * 0.99;
    count = std::max<std::size_t>(
        1, std::min(count - 1, static_cast<std::size_t>(static_cast<double>(count) * ratio * 0.99)));
  }
  pool_.erase(pool_.begin(), pool_.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace lockstep::data
