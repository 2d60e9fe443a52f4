#include "runtime/data/plan/step_packer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace lockstep::data {
namespace {

// The slowest rank may take this much more than the mean: below what a step's time can be measured to.
constexpr double kCloseEnough = 3e-4;
// Rounds in which the slow ranks are paired with the fast ones.
constexpr std::size_t kRounds = 10;
// Samples that a rank may get more of by exchanges than it was dealt.
constexpr std::size_t kSlack = 6;
// Exchanges that bring a micro-batch nearer to what is wanted of it.
constexpr int kFitRounds = 3;

}  // namespace

StepPacker::StepPacker(const PlanOptions& options)
    : ranks_(static_cast<std::size_t>(options.ranks)),
      accumulate_(static_cast<std::size_t>(options.accumulate)),
      cap_(options.cap),
      a_(options.cost.a),
      b_(options.cost.b),
      slowness_(ranks_, 1.0),
      rotate_(options.speeds.empty()),
      batch_tokens_(ranks_ * accumulate_),
      times_(ranks_),
      open_(ranks_),
      begins_(ranks_),
      counts_(ranks_),
      limits_(ranks_),
      by_time_(ranks_) {
  if (rotate_) return;
  const double mean = std::accumulate(options.speeds.begin(), options.speeds.end(), 0.0) / options.ranks;
  for (std::size_t rank = 0; rank < ranks_; ++rank) slowness_[rank] = mean / options.speeds[rank];
}

void StepPacker::clear() {
  placed_.clear();
  sorted_ = true;
  tokens_ = 0;
  std::fill(batch_tokens_.begin(), batch_tokens_.end(), 0);
  std::fill(times_.begin(), times_.end(), 0.0);
}

std::size_t StepPacker::roomiest(std::size_t rank) const {
  std::size_t best = rank * accumulate_;
  for (std::size_t i = best + 1; i < (rank + 1) * accumulate_; ++i) {
    if (batch_tokens_[i] < batch_tokens_[best]) best = i;
  }
  return best;
}

std::uint64_t StepPacker::most_room() const {
  return cap_ - *std::min_element(batch_tokens_.begin(), batch_tokens_.end());
}

bool StepPacker::greatest_is_one_sample() const {
  const auto slowest =
      static_cast<std::size_t>(std::max_element(times_.begin(), times_.end()) - times_.begin());
  const double mean = std::accumulate(times_.begin(), times_.end(), 0.0) / static_cast<double>(ranks_);
  if (placed_.empty() || times_[slowest] <= mean * 1.02) return false;
  return std::count_if(placed_.begin(), placed_.end(),
                       [&](const Placed& item) { return item.batch / accumulate_ == slowest; }) == 1;
}

void StepPacker::put(const Item& item, std::size_t rank, std::size_t batch) {
  placed_.push_back({item.index, item.length, static_cast<std::uint32_t>(batch)});
  batch_tokens_[batch] += item.length;
  tokens_ += item.length;
  times_[rank] += cost(item.length) * slowness_[rank];
}

// Items only get shorter: ranks that were too full for the last ones may have room again.
void StepPacker::reopen(std::uint32_t length) {
  closed_room_ = 0;
  std::size_t kept = 0;
  for (const std::size_t rank : closed_) {
    const std::uint64_t free = room(roomiest(rank));
    if (free >= length) {
      open_.set(rank, times_[rank]);
    } else {
      closed_[kept++] = rank;
      closed_room_ = std::max(closed_room_, free);
    }
  }
  closed_.resize(kept);
}

void StepPacker::deal(std::span<const Item> items, double enough, std::vector<Item>& left) {
  open_.fill(times_);
  sorted_ = sorted_ && placed_.empty();
  closed_.clear();
  closed_room_ = 0;
  placed_.reserve(items.size());
  for (const Item& item : items) {
    if (item.length <= closed_room_) reopen(item.length);
    for (;;) {
      if (open_.empty()) {
        left.push_back(item);
        break;
      }
      const std::size_t rank = open_.least();
      const std::size_t batch = accumulate_ == 1 ? rank : roomiest(rank);
      const std::uint64_t free = room(batch);
      if (free >= item.length) {
        put(item, rank, batch);
        times_[rank] > enough ? open_.take_out(rank) : open_.set(rank, times_[rank]);
        break;
      }
      open_.take_out(rank);
      closed_.push_back(rank);
      closed_room_ = std::max(closed_room_, free);
    }
  }
}

bool StepPacker::place_where_it_fits(const Item& item, bool lengthen) {
  const double item_cost = cost(item.length);
  const double greatest = *std::max_element(times_.begin(), times_.end());
  constexpr std::size_t nothing = ~std::size_t{0};
  std::size_t best = nothing;
  for (std::size_t batch = 0; batch < batch_tokens_.size(); ++batch) {
    if (room(batch) < item.length) continue;
    const std::size_t rank = batch / accumulate_;
    if (!lengthen && times_[rank] + item_cost * slowness_[rank] > greatest) continue;
    if (best == nothing || room(batch) < room(best)) best = batch;
  }
  if (best == nothing) return false;
  put(item, best / accumulate_, best);
  sorted_ = false;
  return true;
}

void StepPacker::fit(Choice choice, std::uint64_t wanted, std::vector<Item>& out,
                     const std::function<bool(std::uint64_t, std::size_t)>& may) {
  std::vector<std::vector<std::uint32_t>> held(batch_tokens_.size());
  for (std::size_t i = 0; i < placed_.size(); ++i)
    held[placed_[i].batch].push_back(static_cast<std::uint32_t>(i));
  for (std::size_t batch = 0; batch < held.size(); ++batch) {
    // Each exchange leaves a smaller gap.
    for (int round = 0; round < kFitRounds; ++round) {
      const std::size_t before = placed_.size();
      if (!fit_batch(batch, held[batch], choice, wanted, out, may)) break;
      if (placed_.size() > before) held[batch].push_back(static_cast<std::uint32_t>(before));
    }
  }
  sorted_ = false;
}

// The exchange (or addition) after which the micro-batch is nearest to what is wanted. False: there is none
// that brings it nearer.
bool StepPacker::fit_batch(std::size_t batch, std::span<const std::uint32_t> held, Choice& choice,
                           std::uint64_t wanted, std::vector<Item>& out,
                           const std::function<bool(std::uint64_t, std::size_t)>& may) {
  constexpr std::size_t nothing = ~std::size_t{0};
  std::vector<Item>& others = choice.order;
  const std::uint64_t sum = batch_tokens_[batch];
  const auto distance = [wanted](std::uint64_t tokens) {
    return tokens > wanted ? tokens - wanted : wanted - tokens;
  };
  std::uint64_t nearest = distance(sum);
  // Not worth an exchange.
  if (nearest * 256 <= wanted) return false;
  std::size_t give = nothing;
  std::size_t take = nothing;
  for (std::size_t i = 0; i <= held.size(); ++i) {
    const std::uint32_t given = i < held.size() ? placed_[held[i]].length : 0;
    if (wanted + given <= sum) continue;
    const std::uint64_t ideal = wanted + given - sum;
    auto found =
        std::lower_bound(others.begin(), others.end(), ideal,
                         [](const Item& item, std::uint64_t length) { return item.length > length; });
    for (int side = 0; side < 2; ++side) {
      if (side == 1) {
        if (found == others.begin()) break;
        --found;
      }
      if (found == others.end() || found->length == given) continue;
      const std::uint64_t after = sum - given + found->length;
      if (after > cap_ || distance(after) >= nearest) continue;
      if (!may(tokens_ - sum + after, placed_.size() + (given == 0 ? 1 : 0))) continue;
      nearest = distance(after);
      give = i;
      take = static_cast<std::size_t>(found - others.begin());
    }
  }
  if (take == nothing) return false;
  Item& chosen = choice.window[others[take].index];
  const Item taken{chosen.index, std::exchange(chosen.length, 0U)};
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(take));
  const std::size_t rank = batch / accumulate_;
  if (give == held.size()) {
    put(taken, rank, batch);
  } else {
    Placed& place = placed_[held[give]];
    out.push_back({place.index, place.length});
    times_[rank] += (cost(taken.length) - cost(place.length)) * slowness_[rank];
    batch_tokens_[batch] += taken.length;
    batch_tokens_[batch] -= place.length;
    tokens_ += taken.length;
    tokens_ -= place.length;
    place.index = taken.index;
    place.length = taken.length;
  }
  return true;
}

void StepPacker::place(std::span<const Item> items, std::size_t batch) {
  for (const Item& item : items) put(item, batch / accumulate_, batch);
  sorted_ = false;
}

void StepPacker::group_by_rank() {
  if (!sorted_) {
    std::stable_sort(placed_.begin(), placed_.end(),
                     [](const Placed& x, const Placed& y) { return x.length > y.length; });
  }
  std::fill(counts_.begin(), counts_.end(), 0);
  if (accumulate_ == 1) {
    for (const Placed& item : placed_) ++counts_[item.batch];
  } else {
    for (const Placed& item : placed_) ++counts_[item.batch / accumulate_];
  }
  std::size_t begin = 0;
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    begins_[rank] = begin;
    begin += counts_[rank] + kSlack;
    limits_[rank] = begin;
  }
  if (by_rank_.size() < begin) by_rank_.resize(begin);
  std::fill(counts_.begin(), counts_.end(), 0);
  for (const Placed& item : placed_) {
    const std::size_t rank = accumulate_ == 1 ? item.batch : item.batch / accumulate_;
    by_rank_[begins_[rank] + counts_[rank]++] = item;
  }
}

// Looks for the item of `from` and the one of `to` (or none) whose exchange makes the slower of the two
// fastest. Both are longest first, so the ideal partner only moves on. Takes the first that is good enough.
bool StepPacker::find_swap(std::size_t from, std::size_t to, double good_enough, Swap& best) const {
  const std::span<const Placed> gives = of_rank(from);
  const std::span<const Placed> takes = of_rank(to);
  const double slow_from = slowness_[from];
  const double slow_to = slowness_[to];
  const double ideal = (times_[from] - times_[to]) / (slow_from + slow_to);
  const double least = best.greatest;
  const std::size_t roomiest_to = roomiest(to);
  const bool may_grow = begins_[to] + takes.size() < limits_[to];
  std::size_t j = 0;
  for (std::size_t i = 0; i < gives.size(); ++i) {
    const double given = cost(gives[i].length);
    while (j < takes.size() && cost(takes[j].length) > given - ideal) ++j;
    for (std::size_t k = j > 0 ? j - 1 : 0; k <= j; ++k) {
      const bool nothing = k == takes.size();
      if (nothing && !may_grow) break;
      const std::uint32_t taken = nothing ? 0 : takes[k].length;
      if (taken >= gives[i].length) continue;
      const double moved = given - (nothing ? 0 : cost(taken));
      const double greatest = std::max(times_[from] - moved * slow_from, times_[to] + moved * slow_to);
      if (greatest >= best.greatest) continue;
      const auto into = nothing ? static_cast<std::uint32_t>(roomiest_to) : takes[k].batch;
      if (room(into) < gives[i].length - taken) continue;
      best = {greatest, i, k, into};
      if (greatest <= good_enough) return true;
    }
  }
  return best.greatest < least;
}

// Puts the item where it belongs, from a hole in the list: lengths hardly differ, so it is near.
void StepPacker::insert_longest_first(std::size_t rank, std::size_t hole, const Placed& item) {
  const std::span<Placed> items = of_rank(rank);
  for (; hole > 0 && items[hole - 1].length < item.length; --hole) items[hole] = items[hole - 1];
  for (; hole + 1 < items.size() && items[hole + 1].length > item.length; ++hole)
    items[hole] = items[hole + 1];
  items[hole] = item;
}

void StepPacker::apply(std::size_t from, std::size_t to, const Swap& swap) {
  const Placed given = of_rank(from)[swap.give];
  const bool nothing = swap.take == counts_[to];
  double moved = cost(given.length);
  batch_tokens_[given.batch] -= given.length;
  batch_tokens_[swap.into] += given.length;
  if (nothing) {
    const std::span<Placed> items = of_rank(from);
    std::copy(items.begin() + static_cast<std::ptrdiff_t>(swap.give) + 1, items.end(),
              items.begin() + static_cast<std::ptrdiff_t>(swap.give));
    --counts_[from];
    ++counts_[to];
  } else {
    const Placed taken = of_rank(to)[swap.take];
    moved -= cost(taken.length);
    batch_tokens_[swap.into] -= taken.length;
    batch_tokens_[given.batch] += taken.length;
    insert_longest_first(from, swap.give, {taken.index, taken.length, given.batch});
  }
  insert_longest_first(to, swap.take, {given.index, given.length, swap.into});
  times_[from] -= moved * slowness_[from];
  times_[to] += moved * slowness_[to];
}

bool StepPacker::improve(std::size_t from, std::size_t to, double good_enough) {
  Swap best{times_[from] * (1 - 1e-9), 0, 0, 0};
  if (!find_swap(from, to, good_enough, best)) return false;
  apply(from, to, best);
  return true;
}

// Slowest first. From one round to the next little changes, which suits an insertion sort.
void StepPacker::order_ranks() {
  for (std::size_t i = 1; i < ranks_; ++i) {
    const std::uint32_t rank = by_time_[i];
    std::size_t place = i;
    for (; place > 0 && times_[by_time_[place - 1]] < times_[rank]; --place)
      by_time_[place] = by_time_[place - 1];
    by_time_[place] = rank;
  }
}

void StepPacker::exchange() {
  group_by_rank();
  if (ranks_ < 2 || placed_.empty()) return;
  const double mean = std::accumulate(times_.begin(), times_.end(), 0.0) / static_cast<double>(ranks_);
  // Not below what the longest sample takes alone.
  const double longest = cost(placed_.front().length) * slowness_[placed_.front().batch / accumulate_];
  const double limit = std::max(mean * (1 + kCloseEnough), longest);
  if (*std::max_element(times_.begin(), times_.end()) <= limit) return;
  std::iota(by_time_.begin(), by_time_.end(), 0U);
  std::sort(by_time_.begin(), by_time_.end(), [this](std::uint32_t x, std::uint32_t y) {
    return times_[x] != times_[y] ? times_[x] > times_[y] : x < y;
  });
  std::size_t shift = 0;
  for (std::size_t round = 0; round < kRounds; ++round) {
    bool improved = false;
    std::size_t slow = 0;
    for (; slow < ranks_ && times_[by_time_[slow]] > limit; ++slow) {
      const std::size_t half = std::max<std::size_t>(1, ranks_ - std::max(slow + 1, ranks_ / 2));
      const std::size_t fast = ranks_ - 1 - (slow + shift) % half;
      if (fast <= slow) break;
      improved |= improve(by_time_[slow], by_time_[fast], limit);
    }
    if (slow == 0) return;
    // The same pairs would fail again.
    if (!improved && ++shift == ranks_) return;
    order_ranks();
  }
}

void StepPacker::go_on() {
  placed_.clear();
  for (std::size_t rank = 0; rank < ranks_; ++rank) {
    const auto items = of_rank(rank);
    placed_.insert(placed_.end(), items.begin(), items.end());
  }
  sorted_ = false;
}

StepView StepPacker::finish(std::size_t first) {
  indices_.resize(placed_.size());
  ends_.resize(ranks_ * accumulate_);
  std::uint32_t at = 0;
  for (std::size_t i = 0; i < ranks_; ++i) {
    const std::size_t rank = rotate_ ? (i + first) % ranks_ : i;
    const std::span<const Placed> items = of_rank(rank);
    if (accumulate_ == 1) {
      for (const Placed& item : items) indices_[at++] = item.index;
      ends_[i] = at;
      continue;
    }
    const auto ends = std::span(ends_).subspan(i * accumulate_, accumulate_);
    std::fill(ends.begin(), ends.end(), 0U);
    for (const Placed& item : items) ++ends[item.batch - rank * accumulate_];
    for (std::uint32_t& end : ends) at += std::exchange(end, at);
    for (const Placed& item : items) indices_[ends[item.batch - rank * accumulate_]++] = item.index;
  }
  return {indices_, ends_};
}

}  // namespace lockstep::data
