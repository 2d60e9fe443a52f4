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

/// The items that a step takes from the front of the pool.
struct StepPacker::Front {
  std::span<const Item> pool;
  const Cost& cost_of;
  std::size_t count = 0;
  std::uint64_t tokens = 0;
  double cost = 0;
  double greatest = 0;  // cost of an item

  /// Takes items as long as `takes(item, its cost)` is true. A step without tokens takes any.
  template <typename Takes>
  void take_while(const Takes& takes) {
    for (; count < pool.size(); ++count) {
      const Item& item = pool[count];
      const double item_cost = cost_of.of(item.length);
      if (tokens > 0 && !takes(item, item_cost)) return;
      tokens += item.length;
      cost += item_cost;
      greatest = std::max(greatest, item_cost);
    }
  }
  bool has_all() const { return count == pool.size(); }
};

std::size_t StepPacker::take(std::span<const Item> pool, bool last, std::vector<std::size_t>* ahead) {
  Front front{.pool = pool, .cost_of = options_.cost};
  front.take_while([&](const Item& item, double cost) { return in_budget(front, item, cost); });
  if (may_stretch_) {
    front.take_while([&](const Item&, double) { return below_stretch(front) && has_outlier(front); });
  }
  if (front.has_all() && !last) return 0;
  if (last) front.count += count_small_rest(pool.subspan(front.count), front.tokens);

  items_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(front.count));
  if (ahead != nullptr) {
    ahead->clear();
    if (promises_tokens_ && !find_ahead(front, last, *ahead)) return 0;
    for (const std::size_t place : *ahead) items_.push_back(pool[place]);
  }
  assign_items();
  if (!may_stretch_ || !balancer_.uneven()) return front.count;

  // The ranks would wait for the slowest one, so additional samples for the others cost no time.
  const std::size_t assigned = front.count;
  front.take_while(
      [&](const Item&, double cost) { return below_stretch(front) && balancer_.add_if_free(cost); });
  if (front.has_all() && !last) return 0;
  if (front.count == assigned) return assigned;
  items_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(front.count));
  assign_items();
  return front.count;
}

// Whether the budget holds the next item too. If the step is full enough, an item that costs more than a rank's share
// begins the next step, where more samples, maybe equally long ones, balance it.
bool StepPacker::in_budget(const Front& front, const Item& next, double cost) const {
  if (front.tokens + next.length > budget_) return false;
  const double filled = static_cast<double>(front.tokens) * per_budget_;
  return !may_stretch_ || filled < kEnoughFilled || has_outlier(front) ||
         !balancer_.outweighs_share(cost * filled, front.cost);
}

bool StepPacker::below_stretch(const Front& front) const {
  return static_cast<double>(front.tokens) < max_tokens_;
}

// Whether an item costs more than a rank's share, so that the other ranks would wait.
bool StepPacker::has_outlier(const Front& front) const {
  return balancer_.outweighs_share(front.greatest, front.cost);
}

// Finds samples after the front that fit into the rest of the budget. Returns false if the pool is too short.
bool StepPacker::find_ahead(const Front& front, bool last, std::vector<std::size_t>& ahead) const {
  const auto full = static_cast<std::uint64_t>(kFull * static_cast<double>(budget_));
  std::uint64_t tokens = front.tokens;
  std::size_t seen = 0;
  for (std::size_t place = front.count; seen < kLookAhead && tokens < full; ++place) {
    if (place >= front.pool.size()) return last;
    const std::uint32_t length = front.pool[place].length;
    if (length == 0) continue;
    ++seen;
    if (tokens + length > budget_) continue;
    tokens += length;
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
  const std::size_t once = items_.size();
  while (items_.size() < count) items_.push_back(items_[items_.size() - once]);
  assign_items();
}

void StepPacker::assign_items() {
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
