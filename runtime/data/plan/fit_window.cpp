#include "runtime/data/plan/fit_window.h"

#include <algorithm>
#include <numeric>

namespace lockstep::data {
namespace {

// Steps whose samples are fitted together, and at least so many micro-batches: with more of them no fewer
// are needed.
constexpr std::size_t kSteps = 16;
constexpr std::size_t kBatches = 512;

}  // namespace

FitWindow::FitWindow(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      accumulate_(static_cast<std::size_t>(options.accumulate)),
      batches_(ranks_ * accumulate_),
      cap_(options.cap),
      cost_(options.cost),
      window_(std::max(kSteps, kBatches / batches_)),
      open_(ranks_) {
}

void FitWindow::begin() {
  window_ = std::max(kSteps, kBatches / batches_);
  steps_.clear();
  next_ = 0;
}

// Samples of the pool for this window. A last window takes what would not make another one.
std::size_t FitWindow::count_for(std::span<const Item> pool, bool last, bool& all) const {
  const std::uint64_t step = batches_ * cap_;
  std::uint64_t tokens = 0;
  std::size_t count = 0;
  while (count < pool.size() && tokens < window_ * step) tokens += pool[count++].length;
  if (!last) return count;
  std::size_t end = count;
  while (end < pool.size() && tokens < (window_ + 1) * step) tokens += pool[end++].length;
  all = end == pool.size();
  return all ? end : count;
}

std::size_t FitWindow::take(std::span<const Item> pool, bool last, const RandomnessBudget& budget,
                            Random& random, std::vector<Item>& left) {
  next_ = 0;
  for (;; window_ /= 2) {
    bool all = false;
    const std::size_t count = count_for(pool, last, all);
    sorted_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
    fill();
    std::size_t used = groups_.size();
    if (!all) {
      // The emptiest ones may be fuller with the samples to come.
      std::stable_sort(groups_.begin(), groups_.end(),
                       [](const Group& x, const Group& y) { return x.tokens > y.tokens; });
      used -= used % batches_;
    }
    const auto end = groups_.begin() + static_cast<std::ptrdiff_t>(used);
    std::sort(groups_.begin(), end, [](const Group& x, const Group& y) {
      return x.samples() != y.samples() ? x.samples() < y.samples() : x.begin < y.begin;
    });
    steps_ = even_steps(std::span(groups_).first(used), batches_, random);
    if (window_ > 1 && !are_within(steps_, budget)) continue;
    for (auto group = end; group != groups_.end(); ++group) {
      left.insert(left.end(), items_.begin() + static_cast<std::ptrdiff_t>(group->begin),
                  items_.begin() + static_cast<std::ptrdiff_t>(group->end));
    }
    window_ = std::min(2 * window_, std::max(kSteps, kBatches / batches_));
    return count;
  }
}

// The first unused sample at this place or behind it.
std::size_t FitWindow::next_unused(std::size_t place) {
  while (unused_[place] != place) {
    unused_[place] = unused_[unused_[place]];
    place = unused_[place];
  }
  return place;
}

// Sorts sorted_ into groups_ of items_ that fit into a micro-batch.
void FitWindow::fill() {
  sort_.longest_first(sorted_);
  const std::size_t count = sorted_.size();
  unused_.resize(count + 1);
  std::iota(unused_.begin(), unused_.end(), 0U);
  items_.clear();
  groups_.clear();
  for (std::size_t first = 0; (first = next_unused(first)) < count;) {
    Group group{items_.size(), items_.size(), 0, 0};
    for (std::size_t place = first; place < count;) {
      const Item& item = sorted_[place];
      items_.push_back(item);
      unused_[place] = static_cast<std::uint32_t>(place + 1);
      group.tokens += item.length;
      group.cost += cost_.of(item.length);
      const std::uint64_t most = cap_ - group.tokens;
      const auto found =
          std::partition_point(sorted_.begin() + static_cast<std::ptrdiff_t>(place), sorted_.end(),
                               [most](const Item& x) { return x.length > most; });
      place = next_unused(static_cast<std::size_t>(found - sorted_.begin()));
    }
    group.end = items_.size();
    groups_.push_back(group);
  }
}

void FitWindow::next(StepPacker& packer) {
  std::vector<Group>& groups = steps_[next_++];
  // Costliest first to the rank with the least so far, each rank as many as any other.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& x, const Group& y) { return x.cost > y.cost; });
  std::vector<double> costs(ranks_, 0);
  std::vector<std::size_t> given(ranks_, 0);
  open_.fill(costs);
  packer.clear();
  for (const Group& group : groups) {
    const std::size_t rank = open_.least();
    packer.place(std::span(items_).subspan(group.begin, group.samples()), rank * accumulate_ + given[rank]);
    costs[rank] += group.cost;
    if (++given[rank] == accumulate_) {
      open_.take_out(rank);
    } else {
      open_.set(rank, costs[rank]);
    }
  }
}

void FitWindow::put_back(std::vector<Item>& left) {
  for (; next_ < steps_.size(); ++next_) {
    for (const Group& group : steps_[next_]) {
      left.insert(left.end(), items_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                  items_.begin() + static_cast<std::ptrdiff_t>(group.end));
    }
  }
}

}  // namespace lockstep::data
