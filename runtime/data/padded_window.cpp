#include "runtime/data/padded_window.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace lockstep::data {
namespace {

// Steps whose samples are sorted together. More of them save little padding, and lengths in a step get no
// more random than they are.
constexpr std::size_t kSteps = 16;
constexpr double kFirstFill = 0.9;

}  // namespace

PaddedWindow::PaddedWindow(const PlanOptions& options, std::uint64_t capacity)
    : batches_(static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate)),
      most_steps_(options.order == Order::sequential ? 1 : kSteps),
      capacity_(capacity),
      packer_(options) {
}

void PaddedWindow::begin() {
  fill_ = kFirstFill;
  items_.clear();
  steps_.clear();
  next_ = 0;
}

// As many as so many steps can hold with their padding, sorted into items_; fill_ follows.
std::size_t PaddedWindow::take_count(std::span<const Item> pool, std::size_t steps) {
  const std::size_t batches = steps * batches_;
  const auto most =
      static_cast<std::uint64_t>(fill_ * static_cast<double>(steps) * static_cast<double>(capacity_));
  std::size_t count = 0;
  std::uint64_t sum = 0;
  while (count < pool.size() && (count == 0 || sum + pool[count].length <= most)) sum += pool[count++].length;
  for (;;) {
    items_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
    sort_.longest_first(items_);
    const std::size_t needed = packer_.needed(items_);
    const double ratio = static_cast<double>(batches) / static_cast<double>(std::max<std::size_t>(needed, 1));
    if (needed <= batches) {
      if (count < pool.size()) fill_ = std::min(1.0, fill_ * std::min(1.25, ratio) * 0.998);
      return count;
    }
    fill_ *= ratio * 0.995;
    count = std::max<std::size_t>(
        1, std::min(count - 1, static_cast<std::size_t>(static_cast<double>(count) * ratio * 0.995)));
  }
}

// Steps of which each has one of every run of neighbouring groups, and so samples of all lengths.
void PaddedWindow::compose(std::size_t steps, Random& random) {
  std::vector<PaddedGroup> groups = packer_.cut_into(items_, steps * batches_);
  // Where there are too few, the last step alone has too few; it too gets samples of all lengths.
  std::vector<PaddedGroup> rest;
  if (const std::size_t over = groups.size() % batches_; over > 0) {
    std::vector<PaddedGroup> full;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const bool spare = (i + 1) * over / groups.size() > i * over / groups.size();
      (spare ? rest : full).push_back(groups[i]);
    }
    groups = std::move(full);
  }
  steps = groups.size() / batches_;
  steps_.assign(steps, {});
  std::vector<std::size_t> samples(steps, 0);
  std::vector<std::size_t> order(steps);
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (std::size_t begin = 0; begin < groups.size(); begin += steps) {
    // The longest of the run have the fewest rows: they go where most samples are already.
    random.shuffle(std::span(order));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t x, std::size_t y) { return samples[x] > samples[y]; });
    for (std::size_t i = 0; i < steps; ++i) {
      const PaddedGroup& group = groups[begin + i];
      steps_[order[i]].push_back(group);
      samples[order[i]] += group.end - group.begin;
    }
  }
  if (!rest.empty()) steps_.push_back(std::move(rest));
}

bool PaddedWindow::is_within(RandomnessBudget budget) const {
  for (const std::vector<PaddedGroup>& groups : steps_) {
    std::uint64_t tokens = 0;
    std::size_t samples = 0;
    for (const PaddedGroup& group : groups) {
      for (std::size_t i = group.begin; i < group.end; ++i) tokens += items_[i].length;
      samples += group.end - group.begin;
    }
    budget.spend(tokens, samples);
  }
  return budget.saved() >= 0;
}

std::size_t PaddedWindow::take(std::span<const Item> pool, bool last, const RandomnessBudget& budget,
                               Random& random) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < pool.size() && tokens < (most_steps_ + 2) * capacity_; ++i)
    tokens += pool[i].length;
  next_ = 0;
  for (std::size_t most = most_steps_;; most /= 2) {
    const double in_pool = static_cast<double>(tokens) / (fill_ * static_cast<double>(capacity_));
    std::size_t steps = std::clamp<std::size_t>(static_cast<std::size_t>(in_pool), 1, most);
    std::size_t count = 0;
    if (last && in_pool < static_cast<double>(most) + 1) {
      // All that is left, in as few steps as hold it.
      items_.assign(pool.begin(), pool.end());
      sort_.longest_first(items_);
      count = pool.size();
      steps = std::max<std::size_t>(1, (packer_.needed(items_) + batches_ - 1) / batches_);
    } else {
      count = take_count(pool, steps);
    }
    compose(steps, random);
    if (most == 1 || is_within(budget)) return count;
  }
}

StepView PaddedWindow::next(std::vector<Item>& samples) {
  std::vector<PaddedGroup>& groups = steps_[next_++];
  samples.clear();
  for (const PaddedGroup& group : groups) {
    samples.insert(samples.end(), items_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                   items_.begin() + static_cast<std::ptrdiff_t>(group.end));
  }
  return packer_.deal(items_, groups);
}

bool PaddedWindow::pack_alone(const std::vector<Item>& samples, StepView& step) {
  if (packer_.needed(samples) > batches_) return false;
  std::vector<PaddedGroup> groups = packer_.cut_into(samples, batches_);
  step = packer_.deal(samples, groups);
  return true;
}

void PaddedWindow::put_back(std::vector<Item>& left) {
  for (; next_ < steps_.size(); ++next_) {
    for (const PaddedGroup& group : steps_[next_]) {
      left.insert(left.end(), items_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                  items_.begin() + static_cast<std::ptrdiff_t>(group.end));
    }
  }
}

}  // namespace lockstep::data
