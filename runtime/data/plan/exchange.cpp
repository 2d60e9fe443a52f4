#include "runtime/data/plan/exchange.h"

#include <algorithm>
#include <cstdint>
#include <utility>

namespace lockstep::data {

void exchange_short_for_long(Part shorts_in, Part longs_in, std::size_t change, LengthSort& sort) {
  std::vector<Item>& shorts = shorts_in.items;
  std::vector<Item>& longs = longs_in.items;
  const auto places_of = [&sort](const std::vector<Item>& items, std::size_t first) {
    std::vector<Item> places;  // index: the place in `items`; longest first
    for (std::size_t i = first; i < items.size(); ++i) {
      places.push_back({static_cast<std::uint32_t>(i), items[i].length});
    }
    sort.longest_first(places);
    return places;
  };
  std::vector<Item> from = places_of(shorts, shorts_in.first);
  std::vector<Item> to = places_of(longs, longs_in.first);
  std::vector<std::uint32_t> gone;
  while (change > 0 && !to.empty()) {
    std::uint64_t sum = 0;
    std::size_t count = 0;
    while (count <= change && count < from.size() &&
           (count < 2 || sum + from[from.size() - 1 - count].length <= to.front().length)) {
      sum += from[from.size() - 1 - count++].length;
    }
    if (count < 2) break;
    // The one whose length is nearest to the sum.
    auto counterpart = std::lower_bound(
        to.begin(), to.end(), sum, [](const Item& x, std::uint64_t length) { return x.length > length; });
    if (counterpart == to.end() ||
        (counterpart != to.begin() && (counterpart - 1)->length - sum < sum - counterpart->length)) {
      --counterpart;
    }
    // One takes its place, and it takes that one's; the others go to the end.
    std::swap(shorts[from.back().index], longs[counterpart->index]);
    from.pop_back();
    for (std::size_t i = 1; i < count; ++i, from.pop_back()) {
      longs.push_back(shorts[from.back().index]);
      gone.push_back(from.back().index);
    }
    to.erase(counterpart);
    change -= count - 1;
  }
  std::sort(gone.begin(), gone.end());
  std::size_t kept = shorts_in.first;
  auto next_gone = gone.begin();
  for (std::size_t i = shorts_in.first; i < shorts.size(); ++i) {
    if (next_gone != gone.end() && *next_gone == i) {
      ++next_gone;
    } else {
      shorts[kept++] = shorts[i];
    }
  }
  shorts.resize(kept);
}

}  // namespace lockstep::data
