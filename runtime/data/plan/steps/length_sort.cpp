#include "runtime/data/plan/steps/length_sort.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <utility>

namespace lockstep::data {
namespace {

// Fewer items than this are sorted by comparison.
constexpr std::size_t kComparisonSortLimit = 24;
// With larger digits, counters and items together do not fit into the first-level cache.
constexpr unsigned kMaxDigitBits = 9;

}  // namespace

void LengthSort::longest_first(std::vector<Item>& items) {
  if (items.size() < kComparisonSortLimit) {
    std::ranges::stable_sort(items, std::greater<>(), &Item::length);
    return;
  }
  std::uint32_t longest = 0;
  for (const Item& item : items) longest = std::max(longest, item.length);
  const auto bits = static_cast<unsigned>(std::bit_width(longest));
  const unsigned passes = std::max(1U, (bits + kMaxDigitBits - 1) / kMaxDigitBits);
  const unsigned digit_bits = (bits + passes - 1) / passes;
  const std::size_t digits = std::size_t{1} << digit_bits;
  const std::uint32_t mask = static_cast<std::uint32_t>(digits) - 1;
  other_.resize(items.size());
  for (unsigned pass = 0; pass < passes; ++pass) {
    const unsigned shift = pass * digit_bits;
    counts_.assign(digits, 0);
    for (const Item& item : items) ++counts_[mask - ((item.length >> shift) & mask)];
    std::uint32_t begin = 0;
    for (std::uint32_t& count : counts_) begin += std::exchange(count, begin);
    for (const Item& item : items) other_[counts_[mask - ((item.length >> shift) & mask)]++] = item;
    items.swap(other_);
  }
}

}  // namespace lockstep::data
