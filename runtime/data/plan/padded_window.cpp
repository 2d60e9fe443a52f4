#include "runtime/data/plan/padded_window.h"

#include <algorithm>
#include <utility>

namespace lockstep::data {
namespace {

// Steps whose samples are sorted together. More of them save little padding, and lengths in a step get no
// more random than they are.
constexpr std::size_t kSteps = 16;
// Steps of fewer micro-batches than this cannot be both full and random: so many micro-batches are sorted
// together, and what fills steps less than this, beside the fullest, is too high a price for randomness.
constexpr std::size_t kHandful = 4;
constexpr std::size_t kBatches = 256;
constexpr double kLeastFill = 0.9;
constexpr double kFirstFill = 0.9;

}  // namespace

PaddedWindow::PaddedWindow(const PlanOptions& options, std::uint64_t capacity)
    : batches_(static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate)),
      most_steps_(options.order == Order::sequential ? 1
                  : batches_ < kHandful              ? kBatches / batches_
                                                     : kSteps),
      capacity_(capacity),
      packer_(options) {
}

void PaddedWindow::begin() {
  fill_ = kFirstFill;
  best_ = 0;
  window_ = most_steps_;
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

// Part of its micro-batches, as few as hold them, that the window's samples fill.
double PaddedWindow::filled() const {
  std::uint64_t tokens = 0;
  for (const Item& item : items_) tokens += item.length;
  return static_cast<double>(tokens) * static_cast<double>(batches_) /
         (static_cast<double>(packer_.needed(items_)) * static_cast<double>(capacity_));
}

// Steps of which each has one of every run of neighbouring groups, and so samples of all lengths. Returns how
// many samples that takes.
std::size_t PaddedWindow::compose(std::span<const Item> pool, bool last, Random& random) {
  std::uint64_t tokens = 0;
  for (std::size_t i = 0; i < pool.size() && tokens < (most_steps_ + 2) * capacity_; ++i)
    tokens += pool[i].length;
  const double in_pool = static_cast<double>(tokens) / (fill_ * static_cast<double>(capacity_));
  std::size_t steps = std::clamp<std::size_t>(static_cast<std::size_t>(in_pool), 1, window_);
  std::size_t count = pool.size();
  if (last && in_pool < static_cast<double>(window_) + 1) {
    // All that is left, in as few steps as hold it.
    items_.assign(pool.begin(), pool.end());
    sort_.longest_first(items_);
  } else {
    count = take_count(pool, steps);
  }
  // No more than hold them.
  steps = std::max<std::size_t>(1, (packer_.needed(items_) + batches_ - 1) / batches_);
  std::vector<Group> groups = packer_.cut_into(items_, steps * batches_);
  // Rows that fill a micro-batch each are not halved into more of them: more samples are wanted. One takes no
  // more than one micro-batch.
  while (groups.size() < steps * batches_ && count < pool.size()) {
    count = std::min(pool.size(), count + steps * batches_ - groups.size());
    items_.assign(pool.begin(), pool.begin() + static_cast<std::ptrdiff_t>(count));
    sort_.longest_first(items_);
    groups = packer_.cut_into(items_, steps * batches_);
  }
  steps_ = even_steps(groups, batches_, random);
  return count;
}

std::size_t PaddedWindow::take(std::span<const Item> pool, bool last, const RandomnessBudget& budget,
                               Random& random) {
  next_ = 0;
  for (window_ = most_steps_;; window_ /= 2) {
    std::size_t count = compose(pool, last, random);
    const double filled_now = filled();
    best_ = std::max(best_, filled_now);
    const bool enough = batches_ >= kHandful || filled_now >= kLeastFill * best_;
    if (enough && window_ > 1 && !budget_after(steps_, budget).kept()) continue;
    if (!enough && window_ < most_steps_) {
      window_ *= 2;
      count = compose(pool, last, random);
    }
    return count;
  }
}

StepView PaddedWindow::next(std::vector<Item>& samples) {
  std::vector<Group>& groups = steps_[next_++];
  samples.clear();
  for (const Group& group : groups) {
    samples.insert(samples.end(), items_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                   items_.begin() + static_cast<std::ptrdiff_t>(group.end));
  }
  return packer_.deal(items_, groups);
}

bool PaddedWindow::pack_alone(const std::vector<Item>& samples, StepView& step) {
  if (packer_.needed(samples) > batches_) return false;
  std::vector<Group> groups = packer_.cut_into(samples, batches_);
  step = packer_.deal(samples, groups);
  return true;
}

void PaddedWindow::put_back(std::vector<Item>& left) {
  for (; next_ < steps_.size(); ++next_) {
    for (const Group& group : steps_[next_]) {
      left.insert(left.end(), items_.begin() + static_cast<std::ptrdiff_t>(group.begin),
                  items_.begin() + static_cast<std::ptrdiff_t>(group.end));
    }
  }
}

}  // namespace lockstep::data
