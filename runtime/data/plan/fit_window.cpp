#include "runtime/data/plan/fit_window.h"

#include <algorithm>
#include <array>
#include <limits>

namespace lockstep::data {
namespace {

// Steps whose samples are fitted together, and at least so many micro-batches: with more of them no fewer
// are needed.
constexpr std::size_t kSteps = 16;
constexpr std::size_t kBatches = 512;
// Of the cap: samples that take so little room that it hardly matters to which micro-batch they go.
constexpr double kLongestShort = 0.125;
// Micro-batches more than the fewest, in parts, that are tried for the sake of the randomness budget.
constexpr std::array<double, 8> kLooseness = {0, 0.0025, 0.005, 0.01, 0.02, 0.04, 0.07, 0.1};
// More than this are used only where that keeps to the budget, and less does not.
constexpr double kLittleLooseness = 0.01;

}  // namespace

FitWindow::FitWindow(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      accumulate_(static_cast<std::size_t>(options.accumulate)),
      batches_(ranks_ * accumulate_),
      cap_(options.cap),
      window_(std::max(kSteps, kBatches / batches_)),
      fit_(options),
      level_(options),
      open_(ranks_) {
}

void FitWindow::begin() {
  looseness_ = 0;
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

// Steps as few as hold the window, but for what may be fuller with the samples to come.
void FitWindow::make_steps(bool all, Random& random) {
  fit_.fit(sorted_, items_, groups_);
  std::size_t used = groups_.size();
  if (!all) {
    std::stable_sort(groups_.begin(), groups_.end(),
                     [](const Group& x, const Group& y) { return x.tokens > y.tokens; });
    used -= used % batches_;
  }
  const auto end = groups_.begin() + static_cast<std::ptrdiff_t>(used);
  std::sort(groups_.begin(), end, [](const Group& x, const Group& y) {
    return x.samples() != y.samples() ? x.samples() < y.samples() : x.begin < y.begin;
  });
  steps_ = even_steps(std::span(groups_).first(used), batches_, random);
  rest_.clear();
  for (auto group = end; group != groups_.end(); ++group) {
    rest_.insert(rest_.end(), items_.begin() + static_cast<std::ptrdiff_t>(group->begin),
                 items_.begin() + static_cast<std::ptrdiff_t>(group->end));
  }
}

// Whether as many samples as the window has, if what it leaves is among them, may be those of another window.
bool FitWindow::leaves_random(const RandomnessBudget& budget) const {
  const auto samples = static_cast<double>(items_.size() - rest_.size());
  const double deviation =
      static_cast<double>(tokens_of(rest_)) - static_cast<double>(rest_.size()) * budget.mean();
  return deviation * deviation <=
         samples * samples * (budget.share(samples) + 1e-9 * budget.mean() * budget.mean());
}

std::size_t FitWindow::take(std::span<const Item> pool, bool last, const RandomnessBudget& budget,
                            Random& random, std::vector<Item>& left) {
  next_ = 0;
  bool all = false;
  std::size_t count = count_for(pool, last, all);
  sorted_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
  sort_.longest_first(sorted_);
  make_steps(all, random);
  if (!leaves_random(budget) || !budget_after(steps_, budget).kept())
    count = level(pool.first(count), all, budget, random);
  left.insert(left.end(), rest_.begin(), rest_.end());
  return count;
}

// Makes the window's steps again, within the budget: of all the window's samples, or of some less for the
// same number of steps. Where that cannot be, whatever is nearest to it. Returns how many samples that takes.
std::size_t FitWindow::level(std::span<const Item> pool, bool all, const RandomnessBudget& budget,
                             Random& random) {
  const std::size_t steps = (groups_.size() + (all ? batches_ - 1 : 0)) / batches_;
  const auto longest_short =
      static_cast<std::uint32_t>(std::min(kLongestShort * static_cast<double>(cap_), budget.mean()));
  double best = leaves_random(budget) ? budget_after(steps_, budget).saved_by_spread()
                                      : -std::numeric_limits<double>::infinity();
  std::size_t taken = pool.size();
  // Where samples come later, these are as many as such steps hold.
  const double held =
      static_cast<double>(pool.size()) *
      std::min(1.0, static_cast<double>(steps * batches_) / static_cast<double>(groups_.size()));
  for (std::size_t i = looseness_ > 0 ? looseness_ - 1 : 0; i < kLooseness.size(); ++i) {
    if (kLooseness[i] > kLittleLooseness && best >= 0) break;
    const double more = 1 + kLooseness[i];
    const auto count = all ? pool.size() : static_cast<std::size_t>(held / more);
    if (!all) {
      sorted_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
      sort_.longest_first(sorted_);
    }
    const auto most = all ? static_cast<std::size_t>(more * static_cast<double>(steps)) : steps;
    if (!level_.make(sorted_, most, longest_short, random)) continue;
    const RandomnessBudget after = budget_after(level_.steps(), budget);
    const bool within = after.kept() || (kLooseness[i] > kLittleLooseness && after.saved_by_spread() >= 0);
    if (within || (kLooseness[i] <= kLittleLooseness && after.saved_by_spread() > best)) {
      steps_.swap(level_.steps());
      items_.swap(level_.items());
      rest_.clear();
      taken = count;
      best = after.saved_by_spread();
    }
    if (within) {
      looseness_ = i;
      return taken;
    }
  }
  looseness_ = 0;
  return taken;
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
