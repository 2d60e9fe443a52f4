#include "runtime/data/plan/steps/step_packer.h"

#include <algorithm>
#include <utility>

#include "runtime/data/plan/order/random.h"

namespace lockstep::data {
namespace {

// A step that has filled this share of its budget may end early. A lower value means less waiting and smaller
// steps.
constexpr double kEnoughFilled = 0.5;
// An epoch's last step may hold this many budgets, so that no step follows with a small rest.
constexpr double kSmallRest = 1.5;
// Where the step's tokens are a promise: a step that has filled this share of its budget is full, ...
constexpr double kFull = 0.99;
// ... and the others look at this many samples for some that fit.
constexpr std::size_t kLookAhead = 64;

}  // namespace

StepPacker::StepPacker(const PlanOptions& options)
    : options_(options),
      budget_(step_budget(options)),
      max_tokens_(step_stretch(options) * static_cast<double>(budget_)),
      per_budget_(1 / static_cast<double>(budget_)),
      may_stretch_(step_stretch(options) > 1 && options.ranks > 1),
      promises_tokens_(options.step_tokens > 0 && !may_stretch_),
      balancer_(options),
      micro_batches_(options.cap),
      padded_cut_(options) {
}

std::size_t StepPacker::take(std::span<const Item> pool, bool last, std::vector<std::size_t>* ahead) {
  std::uint64_t tokens = 0;
  std::size_t count = 0;
  double cost = 0;
  double greatest = 0;
  const auto take_while = [&](auto&& takes) {
    for (; count < pool.size(); ++count) {
      const double item_cost = options_.cost.of(pool[count].length);
      if (tokens > 0 && !takes(pool[count].length, item_cost)) return;
      tokens += pool[count].length;
      cost += item_cost;
      greatest = std::max(greatest, item_cost);
    }
  };
  const auto stretches = [&] { return static_cast<double>(tokens) < max_tokens_; };
  take_while([&](std::uint32_t length, double item_cost) {
    if (tokens + length > budget_) return false;
    // If this step is full enough, a sample that costs more than a rank's share begins the next step, where
    // more samples, maybe equally long ones, balance it.
    const double filled = static_cast<double>(tokens) * per_budget_;
    return !may_stretch_ || filled < kEnoughFilled || balancer_.outweighs_share(greatest, cost) ||
           !balancer_.outweighs_share(item_cost * filled, cost);
  });
  take_while([&](std::uint32_t, double) {
    return may_stretch_ && stretches() && balancer_.outweighs_share(greatest, cost);
  });
  if (count == pool.size() && !last) return 0;
  if (last) count += count_small_rest(pool.subspan(count), tokens);
  if (ahead != nullptr) {
    ahead->clear();
    if (!find_ahead(pool, count, tokens, last, *ahead)) return 0;
    if (!ahead->empty()) {
      std::vector<Item> items(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
      for (const std::size_t place : *ahead) items.push_back(pool[place]);
      assign_items(items);
      return count;
    }
  }
  assign_items(pool.first(count));
  if (!may_stretch_ || !balancer_.uneven()) return count;
  // The ranks would wait for the slowest one, so additional samples for the others cost no time.
  const std::size_t assigned = count;
  take_while(
      [&](std::uint32_t, double item_cost) { return stretches() && balancer_.add_if_free(item_cost); });
  if (count == pool.size() && !last) return 0;
  if (count > assigned) assign_items(pool.first(count));
  return count;
}

// Finds samples from `begin` on that fit into the rest of the budget. Returns false if the pool is too short.
bool StepPacker::find_ahead(std::span<const Item> pool, std::size_t begin, std::uint64_t tokens, bool last,
                            std::vector<std::size_t>& ahead) const {
  if (!promises_tokens_) return true;
  const auto full = static_cast<std::uint64_t>(kFull * static_cast<double>(budget_));
  std::size_t seen = 0;
  for (std::size_t place = begin; seen < kLookAhead && tokens < full; ++place) {
    if (place >= pool.size()) return last;
    if (pool[place].length == 0) continue;
    ++seen;
    if (tokens + pool[place].length > budget_) continue;
    tokens += pool[place].length;
    ahead.push_back(place);
  }
  return true;
}

// The number of remaining items of the epoch if they are less than half a step, else 0.
std::size_t StepPacker::count_small_rest(std::span<const Item> rest, std::uint64_t tokens) const {
  const double max_tokens = std::min(max_tokens_, kSmallRest * static_cast<double>(budget_));
  for (const Item& item : rest) {
    tokens += item.length;
    if (static_cast<double>(tokens) > max_tokens) return 0;
  }
  return rest.size();
}

void StepPacker::repeat_samples(std::size_t count) {
  std::vector<Item> items = items_;
  while (items.size() < count) items.push_back(items[items.size() - items_.size()]);
  assign_items(items);
}

void StepPacker::assign_items(std::span<const Item> items) {
  items_.assign(items.begin(), items.end());
  sort_.longest_first(items_);
  while (!items_.empty() && items_.back().length == 0) items_.pop_back();
  costs_.resize(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) costs_[i] = options_.cost.of(items_[i].length);
  balancer_.assign(costs_);
}

// Cuts micro-batches before it distributes them, because a sample's padding depends on the others of its row.
void StepPacker::assign_groups() {
  groups_ = padded_cut_.cut(items_);
  std::stable_sort(groups_.begin(), groups_.end(),
                   [](const auto& x, const auto& y) { return x.cost > y.cost; });
  costs_.resize(groups_.size());
  for (std::size_t i = 0; i < groups_.size(); ++i) costs_[i] = groups_[i].cost;
  balancer_.assign(costs_);
}

StepView StepPacker::pack(std::uint64_t step) {
  if (options_.padded) assign_groups();
  balancer_.exchange();
  const auto ranks = static_cast<std::size_t>(options_.ranks);
  // Equal ranks take turns, because otherwise the first one would always have the longest sample.
  const std::size_t first =
      options_.speeds.empty() ? Random(options_.seed, options_.epoch, step).below(ranks) : 0;
  indices_.clear();
  batch_ends_.clear();
  rank_ends_.clear();
  for (std::size_t i = 0; i < ranks; ++i) {
    const auto loads = balancer_.loads((first + i) % ranks);
    if (options_.padded) {
      add_groups(loads);
    } else {
      micro_batches_.cut(items_, loads, indices_, batch_ends_);
    }
    rank_ends_.push_back(static_cast<std::uint32_t>(batch_ends_.size()));
  }
  if (options_.equal_micro_batches) add_empty_micro_batches();
  return {indices_, batch_ends_, rank_ends_};
}

// Adds the costliest micro-batch last: gradients travel during its backward.
void StepPacker::add_groups(std::span<const std::uint32_t> loads) {
  for (std::size_t i = loads.size(); i-- > 0;) {
    const PaddedCut::ItemGroup& group = groups_[loads[i]];
    for (std::uint32_t item = group.begin; item < group.end; ++item) indices_.push_back(items_[item].index);
    batch_ends_.push_back(static_cast<std::uint32_t>(indices_.size()));
  }
}

// Gives each rank as many micro-batches as the rank with the largest number, at least one. Empty ones come
// first, because the last one synchronises and gradients should travel during a backward.
void StepPacker::add_empty_micro_batches() {
  std::uint32_t max_batches = 1;
  std::uint32_t before = 0;
  for (const std::uint32_t end : rank_ends_) {
    max_batches = std::max(max_batches, end - std::exchange(before, end));
  }
  equal_ends_.clear();
  std::uint32_t batch = 0;
  std::uint32_t rank = 0;
  for (std::uint32_t& end : rank_ends_) {
    const std::uint32_t at = equal_ends_.empty() ? 0 : equal_ends_.back();
    equal_ends_.insert(equal_ends_.end(), max_batches - (end - batch), at);
    for (; batch < end; ++batch) equal_ends_.push_back(batch_ends_[batch]);
    end = ++rank * max_batches;
  }
  batch_ends_.swap(equal_ends_);
}

}  // namespace lockstep::data
