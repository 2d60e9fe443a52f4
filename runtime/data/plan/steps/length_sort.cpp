#include "runtime/data/plan/steps/length_sort.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

namespace lockstep::data {
namespace {

// Fewer than these are sorted by insertion.
constexpr std::size_t kFew = 24;
// A digit of more bits has more counters than fit beside the items in the fastest cache.
constexpr unsigned kMaxDigitBits = 9;

void insert_longest_first(std::vector<Item>& items) {
  for (std::size_t i = 1; i < items.size(); ++i) {
    const Item item = items[i];
    std::size_t place = i;
    for (; place > 0 && items[place - 1].length < item.length; --place) items[place] = items[place - 1];
    items[place] = item;
  }
}

}  // namespace

void LengthSort::longest_first(std::vector<Item>& items) {
  if (items.size() < kFew) return insert_longest_first(items);
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
