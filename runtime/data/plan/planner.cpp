#include "runtime/data/plan/planner.h"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "common/error.h"
#include "runtime/data/plan/epoch_planner.h"

namespace lockstep::data {
void check_options(const PlanOptions& options) {
  if (options.ranks < 1) fail_usage("ranks must be at least 1, not {}", options.ranks);
  if (options.accumulate < 1) fail_usage("accumulate must be at least 1, not {}", options.accumulate);
  const std::int64_t batches = std::int64_t{options.ranks} * options.accumulate;
  if (batches > kMostMicroBatches) {
    fail_usage("{} ranks x {} micro-batches are {}, over {} a step", options.ranks, options.accumulate,
               batches, kMostMicroBatches);
  }
  if (options.cap < 1) fail_usage("cap must be at least 1 token per micro-batch");
  if (options.cap > std::numeric_limits<std::uint32_t>::max())
    fail_usage("cap {} is not below 2^32", options.cap);
  const Cost& cost = options.cost;
  if (!std::isfinite(cost.a) || !std::isfinite(cost.b) || cost.a < 0 || cost.b < 0 || cost.a + cost.b <= 0) {
    fail_usage("cost {},{} must be two finite numbers, none negative and not both 0", cost.a, cost.b);
  }
  if (!std::isfinite(cost.of(options.cap) * options.ranks * options.accumulate)) {
    fail_usage(
        "cost {},{} is too great for steps of {} x {} micro-batches of {} tokens: give it in another unit",
        cost.a, cost.b, options.ranks, options.accumulate, options.cap);
  }
  if (!(options.randomness > 0) || !std::isfinite(options.randomness)) {
    fail_usage("randomness must be a finite number above 0, not {}", options.randomness);
  }
  if (options.pad_multiple < 1) fail_usage("the multiple to pad to must be at least 1");
  if (options.speeds.empty()) return;
  if (options.speeds.size() != static_cast<std::size_t>(options.ranks)) {
    fail_usage("there are {} speeds for {} ranks", options.speeds.size(), options.ranks);
  }
  for (std::size_t rank = 0; rank < options.speeds.size(); ++rank) {
    if (!(options.speeds[rank] > 0) || !std::isfinite(options.speeds[rank])) {
      fail_usage("the speed of rank {} must be a finite number above 0, not {}", rank, options.speeds[rank]);
    }
  }
}

std::string name_of(TooLong too_long) {
  constexpr std::array<const char*, 4> names = {"refuse", "truncate", "skip", "split"};
  return names.at(static_cast<std::size_t>(too_long));
}

std::string name_of(Tail tail) {
  constexpr std::array<const char*, 3> names = {"fill", "drop", "repeat"};
  return names.at(static_cast<std::size_t>(tail));
}

TooLong too_long_of(const std::string& word, const std::string& option) {
  for (const auto value : {TooLong::refuse, TooLong::truncate, TooLong::skip, TooLong::split}) {
    if (name_of(value) == word) return value;
  }
  fail_usage("{} '{}' is none of refuse, truncate, skip, split", option, word);
}

Tail tail_of(const std::string& word, const std::string& option) {
  for (const auto value : {Tail::fill, Tail::drop, Tail::repeat}) {
    if (name_of(value) == word) return value;
  }
  fail_usage("{} '{}' is none of fill, drop, repeat", option, word);
}

Plan::Plan(PlanOptions options, std::size_t samples, std::string fingerprint)
    : options_(std::move(options)), samples_(samples), fingerprint_(std::move(fingerprint)) {
}

std::span<const SampleId> Plan::micro_batch(std::size_t step, int rank, int micro_batch) const {
  const std::size_t at = step * micro_batches_per_step() +
                         static_cast<std::size_t>(rank) * static_cast<std::size_t>(options_.accumulate) +
                         static_cast<std::size_t>(micro_batch);
  const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
  return std::span(ids_).subspan(begin, ends_[at] - begin);
}

void Plan::append(std::span<const SampleId> samples) {
  ids_.insert(ids_.end(), samples.begin(), samples.end());
  ends_.push_back(ids_.size());
}

void Plan::append(const Plan& more) {
  const std::size_t begin = ids_.size();
  ids_.insert(ids_.end(), more.ids_.begin(), more.ids_.end());
  for (const std::size_t end : more.ends_) ends_.push_back(begin + end);
}

Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options, std::string fingerprint,
               OverLong* over_long) {
  if (fingerprint.empty()) fingerprint = fingerprint_of(lengths);
  const LengthsInMemory source(lengths, std::move(fingerprint));
  EpochPlanner planner(source, options);
  Plan plan = planner.empty_plan();
  plan.reserve(lengths.size());
  while (planner.append_block(plan)) {
  }
  if (over_long != nullptr) *over_long = planner.over_long();
  return plan;
}

std::string fingerprint_of(std::span<const std::uint32_t> lengths) {
  // Hashed as little-endian bytes, which is what every machine we run on has in memory.
  return fmt::format("lengths-{:016x}", XXH3_64bits(lengths.data(), lengths.size_bytes()));
}

}  // namespace lockstep::data
