#include "runtime/data/plan/first_fit.h"

#include <algorithm>
#include <numeric>

namespace lockstep::data {

// The first unused sample at this place or behind it.
std::size_t FirstFit::next_unused(std::size_t place) {
  while (unused_[place] != place) {
    unused_[place] = unused_[unused_[place]];
    place = unused_[place];
  }
  return place;
}

void FirstFit::fit(std::span<const Item> samples, std::vector<Item>& items, std::vector<Group>& groups) {
  const std::size_t count = samples.size();
  unused_.resize(count + 1);
  std::iota(unused_.begin(), unused_.end(), 0U);
  items.clear();
  groups.clear();
  for (std::size_t first = 0; (first = next_unused(first)) < count;) {
    Group group{items.size(), items.size(), 0, 0};
    for (std::size_t place = first; place < count;) {
      const Item& item = samples[place];
      items.push_back(item);
      unused_[place] = static_cast<std::uint32_t>(place + 1);
      group.tokens += item.length;
      group.cost += cost_.of(item.length);
      const std::uint64_t most = cap_ - group.tokens;
      const auto found =
          std::partition_point(samples.begin() + static_cast<std::ptrdiff_t>(place), samples.end(),
                               [most](const Item& x) { return x.length > most; });
      place = next_unused(static_cast<std::size_t>(found - samples.begin()));
    }
    group.end = items.size();
    groups.push_back(group);
  }
}

}  // namespace lockstep::data
