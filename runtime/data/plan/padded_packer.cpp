#include "runtime/data/plan/padded_packer.h"

#include <algorithm>
#include <limits>

namespace lockstep::data {
namespace {

std::size_t rows_within(double limit, double each) {
  const double rows = limit / each;
  return rows >= 1e15 ? std::size_t{1'000'000'000'000'000} : static_cast<std::size_t>(rows);
}

}  // namespace

PaddedPacker::PaddedPacker(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      accumulate_(static_cast<std::size_t>(options.accumulate)),
      cap_(options.cap),
      multiple_(options.pad_multiple),
      cost_(options.cost),
      slowness_(ranks_, 1.0) {
  for (std::size_t rank = 0; rank < options.speeds.size(); ++rank) slowness_[rank] = 1 / options.speeds[rank];
}

std::uint64_t PaddedPacker::row(std::uint32_t length) const {
  return padded_length(length, multiple_, cap_);
}

double PaddedPacker::cost(std::uint64_t length) const {
  return cost_.of(length);
}

Group PaddedPacker::group_of(std::span<const Item> items, std::size_t begin, std::size_t end) const {
  Group group{begin, end, 0, static_cast<double>(end - begin) * cost(row(items[begin].length))};
  for (std::size_t i = begin; i < end; ++i) group.tokens += items[i].length;
  return group;
}

// Cuts into groups whose cost is within the limit and whose tokens, padding included, are within the cap.
std::size_t PaddedPacker::cut(std::span<const Item> items, double limit, std::vector<Group>* groups) const {
  std::size_t count = 0;
  for (std::size_t begin = 0; begin < items.size(); ++count) {
    const std::uint64_t longest = row(items[begin].length);
    const std::size_t rows = std::max<std::size_t>(
        1,
        std::min<std::size_t>(rows_within(limit, cost(longest)), static_cast<std::size_t>(cap_ / longest)));
    const std::size_t end = items.size() - begin > rows ? begin + rows : items.size();
    if (groups != nullptr) groups->push_back(group_of(items, begin, end));
    begin = end;
  }
  return count;
}

std::size_t PaddedPacker::needed(std::span<const Item> items) const {
  return cut(items, std::numeric_limits<double>::infinity(), nullptr);
}

std::vector<Group> PaddedPacker::cut_into(std::span<const Item> items, std::size_t batches) const {
  std::vector<Group> groups;
  if (items.empty()) return groups;
  // The least limit on a micro-batch's cost that still gives no more micro-batches than there are.
  double low = 0;
  double high = cost(row(items.front().length)) * static_cast<double>(items.size());
  for (int i = 0; i < 40 && high - low > 1e-4 * high; ++i) {
    const double middle = (low + high) / 2;
    (cut(items, middle, nullptr) <= batches ? high : low) = middle;
  }
  cut(items, high, &groups);
  // A rank with nothing to do would wait: the costliest that have two rows are halved.
  while (groups.size() < batches) {
    auto costliest = groups.end();
    for (auto group = groups.begin(); group != groups.end(); ++group) {
      if (group->end - group->begin < 2) continue;
      if (costliest == groups.end() || group->cost > costliest->cost) costliest = group;
    }
    if (costliest == groups.end()) break;
    const std::size_t middle = costliest->begin + (costliest->end - costliest->begin) / 2;
    const Group second = group_of(items, middle, costliest->end);
    *costliest = group_of(items, costliest->begin, middle);
    groups.insert(costliest + 1, second);
  }
  return groups;
}

StepView PaddedPacker::deal(std::span<const Item> items, std::vector<Group>& groups) {
  const std::size_t batches = ranks_ * accumulate_;
  // Costliest first to the rank with the least time so far, each rank as many micro-batches as any other.
  std::stable_sort(groups.begin(), groups.end(),
                   [](const Group& x, const Group& y) { return x.cost > y.cost; });
  std::vector<double> times(ranks_);
  std::vector<std::size_t> given(ranks_);
  std::vector<const Group*> dealt(batches);
  for (const Group& group : groups) {
    std::size_t best = ranks_;
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      if (given[rank] == accumulate_) continue;
      if (best == ranks_ ||
          times[rank] + group.cost * slowness_[rank] < times[best] + group.cost * slowness_[best]) {
        best = rank;
      }
    }
    times[best] += group.cost * slowness_[best];
    dealt[best * accumulate_ + given[best]++] = &group;
  }
  indices_.clear();
  ends_.clear();
  for (const Group* group : dealt) {
    if (group != nullptr) {
      for (std::size_t i = group->begin; i < group->end; ++i) indices_.push_back(items[i].index);
    }
    ends_.push_back(static_cast<std::uint32_t>(indices_.size()));
  }
  return {indices_, ends_};
}

}  // namespace lockstep::data
