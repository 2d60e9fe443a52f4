#include "runtime/data/step_packer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace lockstep::data {
namespace {

// Exchanging stops when the costliest rank is this near the mean: below what a step's time can be measured
// to.
constexpr double kCloseEnough = 1e-4;
// Ranks, the cheapest first, that are tried as partners for one exchange.
constexpr std::size_t kPartners = 8;

std::size_t rows_within(double limit, double each) {
  const double rows = limit / each;
  return rows >= 1e15 ? std::size_t{1'000'000'000'000'000} : static_cast<std::size_t>(rows);
}

}  // namespace

StepPacker::StepPacker(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      accumulate_(static_cast<std::size_t>(options.accumulate)),
      cap_(options.cap),
      cost_(options.cost),
      batches_(ranks_ * accumulate_),
      costs_(ranks_) {
}

void StepPacker::clear() {
  for (MicroBatch& batch : batches_) {
    batch.items.clear();
    batch.tokens = 0;
  }
  std::fill(costs_.begin(), costs_.end(), 0.0);
}

std::size_t StepPacker::roomiest(std::size_t rank) const {
  std::size_t best = rank * accumulate_;
  for (std::size_t i = best + 1; i < (rank + 1) * accumulate_; ++i) {
    if (batches_[i].tokens < batches_[best].tokens) best = i;
  }
  return best;
}

std::uint64_t StepPacker::most_room() const {
  std::uint64_t least = cap_;
  for (const MicroBatch& batch : batches_) least = std::min(least, batch.tokens);
  return cap_ - least;
}

std::uint64_t StepPacker::tokens() const {
  std::uint64_t sum = 0;
  for (const MicroBatch& batch : batches_) {
    for (const Item& item : batch.items) sum += item.length;
  }
  return sum;
}

std::size_t StepPacker::samples() const {
  std::size_t sum = 0;
  for (const MicroBatch& batch : batches_) sum += batch.items.size();
  return sum;
}

bool StepPacker::greatest_is_one_sample() const {
  const auto greatest =
      static_cast<std::size_t>(std::max_element(costs_.begin(), costs_.end()) - costs_.begin());
  std::size_t items = 0;
  std::uint64_t tokens = 0;
  for (std::size_t i = greatest * accumulate_; i < (greatest + 1) * accumulate_; ++i) {
    items += batches_[i].items.size();
    tokens += batches_[i].tokens;
  }
  if (items != 1 || tokens == 0) return false;
  const double mean = std::accumulate(costs_.begin(), costs_.end(), 0.0) / static_cast<double>(ranks_);
  return costs_[greatest] > mean * 1.02;
}

// Keeps a micro-batch's items longest first.
void StepPacker::put(std::size_t micro_batch, const Item& item) {
  MicroBatch& batch = batches_[micro_batch];
  auto place = batch.items.end();
  while (place != batch.items.begin() && longer(item, *(place - 1))) --place;
  batch.items.insert(place, item);
  batch.tokens += item.length;
  costs_[micro_batch / accumulate_] += cost_.of(item.length);
}

void StepPacker::place(std::span<const Item> items, double enough, std::vector<Item>& left) {
  // Two heaps, so that a rank that is too full for the long items costs nothing until the short ones come:
  // `open_` by cost, `full_` by room. Items only get shorter, so a rank once reopened stays fit until it is
  // given one.
  const auto costlier = [](const auto& x, const auto& y) { return x > y; };
  open_.clear();
  full_.clear();
  for (std::size_t rank = 0; rank < ranks_; ++rank) open_.emplace_back(costs_[rank], rank);
  std::make_heap(open_.begin(), open_.end(), costlier);
  for (const Item& item : items) {
    while (!full_.empty() && full_.front().first >= item.length) {
      std::pop_heap(full_.begin(), full_.end());
      open_.emplace_back(costs_[full_.back().second], full_.back().second);
      full_.pop_back();
      std::push_heap(open_.begin(), open_.end(), costlier);
    }
    bool placed = false;
    while (!placed && !open_.empty()) {
      std::pop_heap(open_.begin(), open_.end(), costlier);
      auto& [cost, rank] = open_.back();
      const std::size_t batch = roomiest(rank);
      if (room(batch) >= item.length) {
        put(batch, item);
        cost = costs_[rank];
        if (cost > enough) {
          open_.pop_back();
        } else {
          std::push_heap(open_.begin(), open_.end(), costlier);
        }
        placed = true;
      } else {
        full_.emplace_back(room(batch), rank);
        open_.pop_back();
        std::push_heap(full_.begin(), full_.end());
      }
    }
    if (!placed) left.push_back(item);
  }
}

bool StepPacker::place_where_it_fits(const Item& item, bool lengthen) {
  const double cost = cost_.of(item.length);
  const double greatest = *std::max_element(costs_.begin(), costs_.end());
  std::size_t best = kNothing;
  for (std::size_t i = 0; i < batches_.size(); ++i) {
    if (room(i) < item.length || (!lengthen && costs_[i / accumulate_] + cost > greatest)) continue;
    if (best == kNothing || room(i) < room(best)) best = i;
  }
  if (best == kNothing) return false;
  put(best, item);
  return true;
}

bool StepPacker::improve(std::size_t from, std::size_t to, Change& best) const {
  const double half = (costs_[from] - costs_[to]) / 2;
  bool found = false;
  const auto consider = [&](double moved, Place give, Place take) {
    const double greater = std::max(costs_[from] - moved, costs_[to] + moved);
    if (greater < best.cost) {
      best = {greater, give, take};
      found = true;
    }
  };
  for (std::size_t f = from * accumulate_; f < (from + 1) * accumulate_; ++f) {
    for (std::size_t t = to * accumulate_; t < (to + 1) * accumulate_; ++t) {
      const std::vector<Item>& gives = batches_[f].items;
      const std::vector<Item>& takes = batches_[t].items;
      std::size_t j = 0;  // the first item that is no longer than the ideal partner; it only moves on
      for (std::size_t i = 0; i < gives.size(); ++i) {
        const double cost = cost_.of(gives[i].length);
        if (gives[i].length <= room(t)) consider(cost, {f, i}, {t, kNothing});
        while (j < takes.size() && cost_.of(takes[j].length) > cost - half) ++j;
        // The two around the ideal; the longer one leaves more room.
        for (std::size_t k = j > 0 ? j - 1 : 0; k <= j && k < takes.size(); ++k) {
          if (takes[k].length >= gives[i].length || gives[i].length - takes[k].length > room(t)) continue;
          consider(cost - cost_.of(takes[k].length), {f, i}, {t, k});
        }
      }
    }
  }
  return found;
}

void StepPacker::apply(std::size_t from, std::size_t to, const Change& change) {
  const auto remove = [this](std::size_t rank, const Place& place) {
    MicroBatch& batch = batches_[place.micro_batch];
    const Item item = batch.items[place.index];
    batch.items.erase(batch.items.begin() + static_cast<std::ptrdiff_t>(place.index));
    batch.tokens -= item.length;
    costs_[rank] -= cost_.of(item.length);
    return item;
  };
  const Item given = remove(from, change.give);
  if (change.take.index != kNothing) {
    const Item taken = remove(to, change.take);
    put(change.give.micro_batch, taken);
  }
  put(change.take.micro_batch, given);
}

void StepPacker::exchange() {
  if (ranks_ < 2) return;
  const double mean = std::accumulate(costs_.begin(), costs_.end(), 0.0) / static_cast<double>(ranks_);
  by_cost_.resize(ranks_);
  std::iota(by_cost_.begin(), by_cost_.end(), std::size_t{0});
  const std::size_t partners = std::min(kPartners, ranks_ - 1);
  for (std::size_t round = 0; round < 16 + 8 * ranks_; ++round) {
    const std::size_t from =
        static_cast<std::size_t>(std::max_element(costs_.begin(), costs_.end()) - costs_.begin());
    if (costs_[from] <= mean * (1 + kCloseEnough)) return;
    std::partial_sort(by_cost_.begin(), by_cost_.begin() + static_cast<std::ptrdiff_t>(partners),
                      by_cost_.end(), [this](std::size_t x, std::size_t y) {
                        return costs_[x] != costs_[y] ? costs_[x] < costs_[y] : x < y;
                      });
    Change best{costs_[from] * (1 - 1e-9), {}, {}};
    std::size_t partner = from;
    for (std::size_t i = 0; i < partners; ++i) {
      if (improve(from, by_cost_[i], best)) partner = by_cost_[i];
      if (best.cost <= mean * (1 + kCloseEnough)) break;
    }
    if (partner == from) return;
    apply(from, partner, best);
  }
}

// Cuts longest first into groups whose padded cost is within the limit and whose padded tokens are within the
// cap. Returns how many; `keep` fills the micro-batches (there must be enough).
std::size_t StepPacker::cut(std::span<const Item> items, double limit, bool keep) {
  std::size_t groups = 0;
  for (std::size_t begin = 0; begin < items.size(); ++groups) {
    const std::uint32_t longest = items[begin].length;
    const std::size_t rows = std::min<std::size_t>(rows_within(limit, cost_.of(longest)),
                                                   static_cast<std::size_t>(cap_ / longest));
    const std::size_t end = std::min(items.size(), begin + std::max<std::size_t>(rows, 1));
    if (keep) {
      batches_[groups].items.assign(items.begin() + static_cast<std::ptrdiff_t>(begin),
                                    items.begin() + static_cast<std::ptrdiff_t>(end));
      batches_[groups].tokens = (end - begin) * longest;
    }
    begin = end;
  }
  return groups;
}

std::size_t StepPacker::place_padded(std::span<const Item> items) {
  clear();
  if (items.empty()) return 0;
  const double no_limit = std::numeric_limits<double>::infinity();
  const std::size_t least = cut(items, no_limit, false);
  if (least > batches_.size()) return least;
  // The least limit on a micro-batch's cost that still gives no more micro-batches than there are.
  double low = 0;
  double high = 0;
  for (const Item& item : items) high += cost_.of(item.length);
  high = std::max(high, cost_.of(items.front().length) * static_cast<double>(items.size()));
  for (int i = 0; i < 40 && high - low > 1e-4 * high; ++i) {
    const double middle = (low + high) / 2;
    (cut(items, middle, false) <= batches_.size() ? high : low) = middle;
  }
  cut(items, high, true);

  // Costliest first to the rank with the least so far, each rank as many micro-batches as any other.
  const auto padded_cost = [this](const MicroBatch& batch) {
    return batch.items.empty()
               ? 0.0
               : cost_.of(batch.items.front().length) * static_cast<double>(batch.items.size());
  };
  std::stable_sort(batches_.begin(), batches_.end(),
                   [&](const MicroBatch& x, const MicroBatch& y) { return padded_cost(x) > padded_cost(y); });
  std::vector<MicroBatch> dealt(batches_.size());
  std::vector<std::size_t> given(ranks_);
  for (MicroBatch& batch : batches_) {
    std::size_t rank = kNothing;
    for (std::size_t r = 0; r < ranks_; ++r) {
      if (given[r] < accumulate_ && (rank == kNothing || costs_[r] < costs_[rank])) rank = r;
    }
    costs_[rank] += padded_cost(batch);
    dealt[rank * accumulate_ + given[rank]++] = std::move(batch);
  }
  batches_ = std::move(dealt);
  return least;
}

void StepPacker::append_to(Plan& plan, std::size_t first) {
  std::vector<SampleId> ids;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    for (const MicroBatch& batch : of_rank((rank + first) % ranks_)) {
      ids.clear();
      for (const Item& item : batch.items) ids.push_back(item.id);
      plan.append(ids);
    }
  }
}

}  // namespace lockstep::data
