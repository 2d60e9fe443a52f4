#include "runtime/data/plan/steps/padded_cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::data {
namespace {

// Micro-batches for each full micro-batch of the step's tokens. On conversations at 8 ranks, 1, 2, 3 and 4
// leave 5.1, 2.6, 1.5 and 1.0 % of padding; a micro-batch of a third of the cap still keeps a device busy.
constexpr double kCutsPerFullMicroBatch = 3.2;
// Steps of the search for the price of a micro-batch, in tokens: each halves the range of its logarithm.
constexpr int kSearches = 8;

}  // namespace

PaddedCut::PaddedCut(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      wanted_(static_cast<std::size_t>(kCutsPerFullMicroBatch * static_cast<double>(step_budget(options)) /
                                       static_cast<double>(options.cap))),
      cap_(options.cap),
      multiple_(options.pad_multiple),
      cost_(options.cost) {
}

void PaddedCut::prepare(std::span<const Item> items) {
  const std::size_t count = items.size();
  row_.resize(count);
  max_end_.resize(count);
  double all = 0;
  for (std::size_t i = 0; i < count; ++i) {
    row_[i] = static_cast<double>(padded_length(items[i].length, multiple_, cap_));
    all += cost_.of(static_cast<std::uint64_t>(row_[i]));
  }
  // Cuts are tried only where a run of equal rows begins: within a run they are all equally good.
  run_begins_.clear();
  for (std::uint32_t i = 1; i < count; ++i) {
    if (row_[i] != row_[i - 1]) run_begins_.push_back(i);
  }
  const double share = all / static_cast<double>(ranks_) * (1 + 1e-9);
  for (std::size_t i = 0; i < count; ++i) {
    const double rows =
        std::min(static_cast<double>(cap_) / row_[i], share / cost_.of(static_cast<std::uint64_t>(row_[i])));
    const auto remaining = static_cast<double>(count - i);
    max_end_[i] =
        static_cast<std::uint32_t>(i + static_cast<std::size_t>(std::max(1.0, std::min(rows, remaining))));
  }
}

// Finds, by dynamic programming, the cut that minimises tokens, with padding, plus the price of each
// micro-batch. Returns its number of micro-batches.
std::size_t PaddedCut::best_cut(double price) {
  const std::size_t count = row_.size();
  price_to_.assign(count + 1, std::numeric_limits<double>::infinity());
  begin_.resize(count + 1);
  price_to_[0] = 0;
  auto run = run_begins_.begin();
  for (std::uint32_t begin = 0; begin < count; ++begin) {
    while (run != run_begins_.end() && *run <= begin) ++run;
    if (std::isinf(price_to_[begin])) continue;  // no cut leads here
    const auto end_at = [&](std::uint32_t end) {
      const double sum = price_to_[begin] + price + (end - begin) * row_[begin];
      if (sum >= price_to_[end]) return;
      price_to_[end] = sum;
      begin_[end] = begin;
    };
    for (auto end = run; end != run_begins_.end() && *end < max_end_[begin]; ++end) end_at(*end);
    end_at(max_end_[begin]);
  }
  std::size_t groups = 0;
  for (std::size_t end = count; end > 0; end = begin_[end]) ++groups;
  return groups;
}

const std::vector<PaddedCut::ItemGroup>& PaddedCut::cut(std::span<const Item> items) {
  prepare(items);
  // A higher price of a micro-batch makes fewer of them.
  double low = 1;
  double high = static_cast<double>(cap_);
  if (best_cut(low) > wanted_) {
    for (int search = 0; search < kSearches; ++search) {
      const double price = std::sqrt(low * high);
      (best_cut(price) > wanted_ ? low : high) = price;
    }
    best_cut(high);
  }
  groups_.clear();
  for (auto end = static_cast<std::uint32_t>(items.size()); end > 0; end = begin_[end]) {
    const std::uint32_t begin = begin_[end];
    groups_.push_back({begin, end, (end - begin) * cost_.of(static_cast<std::uint64_t>(row_[begin]))});
  }
  return groups_;
}

}  // namespace lockstep::data
