#include "tests/bench/planner_peers.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <queue>
#include <utility>

#include "runtime/data/plan/order/random.h"

namespace lockstep::bench {
namespace {

using data::Plan;
using data::PlanOptions;
using data::SampleId;
using Bins = std::vector<std::vector<SampleId>>;

std::vector<SampleId> shuffled(std::size_t samples, const PlanOptions& options) {
  std::vector<SampleId> order(samples);
  std::iota(order.begin(), order.end(), SampleId{0});
  data::Random(options.seed, options.epoch, 1).shuffle(std::span(order));
  return order;
}

Plan empty_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  return {options, lengths.size(), data::fingerprint_of(lengths)};
}

// Adds a step. The bins are the micro-batches, `accumulate` for each rank.
void append_step(Plan& plan, const Bins& bins) {
  const auto per_rank = static_cast<std::size_t>(plan.options().accumulate);
  std::vector<Bins> ranks;
  for (std::size_t i = 0; i < bins.size(); i += per_rank) {
    ranks.emplace_back(bins.begin() + static_cast<std::ptrdiff_t>(i),
                       bins.begin() + static_cast<std::ptrdiff_t>(i + per_rank));
  }
  plan.append_step(ranks);
}

// Puts each sample, longest first, into the bin with the fewest tokens. Returns false if a sample does not
// fit there.
bool longest_first(std::span<const SampleId> samples, std::span<const std::uint32_t> lengths,
                   std::size_t bins, std::uint64_t cap, Bins* filled) {
  std::vector<SampleId> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end(), [&](SampleId x, SampleId y) { return lengths[x] > lengths[y]; });
  std::priority_queue<std::pair<std::uint64_t, std::size_t>,
                      std::vector<std::pair<std::uint64_t, std::size_t>>, std::greater<>>
      emptiest;
  for (std::size_t bin = 0; bin < bins; ++bin) emptiest.emplace(0, bin);
  if (filled != nullptr) filled->assign(bins, {});
  for (const SampleId id : sorted) {
    const auto [tokens, bin] = emptiest.top();
    if (tokens + lengths[id] > cap) return false;
    emptiest.pop();
    emptiest.emplace(tokens + lengths[id], bin);
    if (filled != nullptr) (*filled)[bin].push_back(id);
  }
  return true;
}

std::size_t micro_batches_of(const PlanOptions& options) {
  return static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate);
}

// Cuts the order into batches that end before the sample that does not fit. Padded ones hold rows x longest.
Bins full_batches(std::span<const SampleId> order, std::span<const std::uint32_t> lengths, std::uint64_t cap,
                  bool padded) {
  Bins batches;
  std::uint64_t tokens = 0;
  std::uint64_t longest = 0;
  for (const SampleId id : order) {
    tokens += lengths[id];
    longest = std::max<std::uint64_t>(longest, lengths[id]);
    const std::uint64_t rows = batches.empty() ? 0 : batches.back().size() + 1;
    if (rows == 0 || (padded ? rows * longest : tokens) > cap) {
      batches.emplace_back();
      tokens = longest = lengths[id];
    }
    batches.back().push_back(id);
  }
  return batches;
}

// The steps are groups of consecutive batches, in this order.
Plan plan_of(const Bins& batches, std::span<const std::size_t> groups, std::span<const std::uint32_t> lengths,
             const PlanOptions& options) {
  Plan plan = empty_plan(lengths, options);
  const std::size_t in_step = micro_batches_of(options);
  for (const std::size_t group : groups) {
    const auto begin = batches.begin() + static_cast<std::ptrdiff_t>(group * in_step);
    append_step(plan, Bins(begin, begin + static_cast<std::ptrdiff_t>(in_step)));
  }
  return plan;
}

}  // namespace

Plan fairseq(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  std::vector<SampleId> order = shuffled(lengths.size(), options);
  std::stable_sort(order.begin(), order.end(),
                   [&](SampleId x, SampleId y) { return lengths[x] < lengths[y]; });
  const auto batches = full_batches(order, lengths, options.cap, true);
  std::vector<std::size_t> groups(batches.size() / micro_batches_of(options));
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  data::Random(options.seed, options.epoch, 2).shuffle(std::span(groups));
  return plan_of(batches, groups, lengths, options);
}

Plan random_batches(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  const auto batches = full_batches(shuffled(lengths.size(), options), lengths, options.cap, options.padded);
  std::vector<std::size_t> groups(batches.size() / micro_batches_of(options));
  std::iota(groups.begin(), groups.end(), std::size_t{0});
  return plan_of(batches, groups, lengths, options);
}

Plan multipack(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  Plan plan = empty_plan(lengths, options);
  const std::vector<SampleId> order = shuffled(lengths.size(), options);
  const std::size_t bins =
      static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate);
  Bins filled;
  for (std::size_t begin = 0;;) {
    // The sum of the lengths is an upper bound for the search.
    std::size_t bound = begin;
    for (std::uint64_t sum = 0; bound < order.size(); ++bound) {
      sum += lengths[order[bound]];
      if (sum > bins * options.cap) break;
    }
    std::size_t low = begin;
    std::size_t high = bound + 1;
    while (high - low > 1) {
      const std::size_t middle = low + (high - low) / 2;
      const auto samples = std::span(order).subspan(begin, middle - begin);
      (longest_first(samples, lengths, bins, options.cap, nullptr) ? low : high) = middle;
    }
    if (low == begin || low == order.size()) return plan;
    longest_first(std::span(order).subspan(begin, low - begin), lengths, bins, options.cap, &filled);
    append_step(plan, filled);
    begin = low;
  }
}

Plan greedy_with_swaps(std::span<const std::uint32_t> lengths, const PlanOptions& options) {
  Plan plan = empty_plan(lengths, options);
  const std::vector<SampleId> order = shuffled(lengths.size(), options);
  const std::size_t bins =
      static_cast<std::size_t>(options.ranks) * static_cast<std::size_t>(options.accumulate);
  const auto target = static_cast<std::uint64_t>(0.985 * static_cast<double>(bins * options.cap));
  std::vector<SampleId> waiting;
  for (std::size_t next = 0; next < order.size() || !waiting.empty();) {
    std::vector<SampleId> chosen = std::exchange(waiting, {});
    std::uint64_t sum = 0;
    for (const SampleId id : chosen) sum += lengths[id];
    while (next < order.size() && (chosen.empty() || sum + lengths[order[next]] <= target)) {
      sum += lengths[order[next]];
      chosen.push_back(order[next++]);
    }
    std::sort(chosen.begin(), chosen.end(), [&](SampleId x, SampleId y) { return lengths[x] > lengths[y]; });
    Bins filled(bins);
    std::vector<std::uint64_t> tokens(bins);
    std::vector<double> costs(bins);
    for (const SampleId id : chosen) {
      std::size_t best = bins;
      for (std::size_t bin = 0; bin < bins; ++bin) {
        if (tokens[bin] + lengths[id] <= options.cap && (best == bins || costs[bin] < costs[best]))
          best = bin;
      }
      if (best == bins) {
        waiting.push_back(id);
        continue;
      }
      filled[best].push_back(id);
      tokens[best] += lengths[id];
      costs[best] += options.cost.of(lengths[id]);
    }
    for (int round = 0; round < 64; ++round) {
      const auto worst =
          static_cast<std::size_t>(std::max_element(costs.begin(), costs.end()) - costs.begin());
      double best = costs[worst];
      std::size_t partner = bins;
      std::size_t give = 0;
      std::size_t take = 0;
      for (std::size_t bin = 0; bin < bins; ++bin) {
        if (bin == worst) continue;
        for (std::size_t i = 0; i < filled[worst].size(); ++i) {
          for (std::size_t j = 0; j < filled[bin].size(); ++j) {
            const std::uint32_t x = lengths[filled[worst][i]];
            const std::uint32_t y = lengths[filled[bin][j]];
            if (x <= y || tokens[bin] + x - y > options.cap) continue;
            const double moved = options.cost.of(x) - options.cost.of(y);
            const double greater = std::max(costs[worst] - moved, costs[bin] + moved);
            if (greater >= best) continue;
            best = greater;
            partner = bin;
            give = i;
            take = j;
          }
        }
      }
      if (partner == bins) break;
      const std::uint32_t x = lengths[filled[worst][give]];
      const std::uint32_t y = lengths[filled[partner][take]];
      const double moved = options.cost.of(x) - options.cost.of(y);
      costs[worst] -= moved;
      costs[partner] += moved;
      tokens[worst] -= x - y;
      tokens[partner] += x - y;
      std::swap(filled[worst][give], filled[partner][take]);
    }
    append_step(plan, filled);
  }
  return plan;
}

std::vector<Peer> peers() {
  return {{"fairseq", fairseq}, {"multipack", multipack}, {"greedy_with_swaps", greedy_with_swaps}};
}

}  // namespace lockstep::bench
