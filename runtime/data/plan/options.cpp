#include "runtime/data/plan/options.h"

#include <array>
#include <cmath>
#include <limits>

#include "common/error.h"

namespace lockstep::data {

void check_options(const PlanOptions& options) {
  if (options.ranks < 1) fail_usage("ranks must be at least 1, not {}", options.ranks);
  if (options.accumulate < 1) fail_usage("accumulate must be at least 1, not {}", options.accumulate);
  const std::int64_t batches = std::int64_t{options.ranks} * options.accumulate;
  if (batches > kMaxMicroBatches) {
    fail_usage("{} ranks x {} micro-batches are {}, more than the {} that a step may have", options.ranks,
               options.accumulate, batches, kMaxMicroBatches);
  }
  if (options.cap < 1) fail_usage("cap must be at least 1 token per micro-batch");
  if (options.cap > std::numeric_limits<std::uint32_t>::max())
    fail_usage("cap {} must be below 2^32", options.cap);
  const Cost& cost = options.cost;
  if (!std::isfinite(cost.a) || !std::isfinite(cost.b) || cost.a < 0 || cost.b < 0 || cost.a + cost.b <= 0) {
    fail_usage("cost {},{} must be two finite numbers, none negative and not both 0", cost.a, cost.b);
  }
  if (!std::isfinite(options.step_stretch) || options.step_stretch < 1) {
    fail_usage("the step stretch must be a finite number from 1 on, not {}", options.step_stretch);
  }
  if (options.step_tokens > std::numeric_limits<std::int64_t>::max()) {
    fail_usage("step_tokens {} must be below 2^63", options.step_tokens);
  }
  const double samples = static_cast<double>(step_budget(options)) * options.step_stretch;
  if (!std::isfinite(cost.of(options.cap) * samples)) {
    fail_usage("cost {},{} is too great for steps of {} tokens: give it in another unit", cost.a, cost.b,
               step_budget(options));
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

PlanOptions with_cost(PlanOptions options, const Cost& cost, const std::vector<double>& speeds) {
  options.cost = cost;
  options.speeds = speeds;
  check_options(options);
  return options;
}

std::uint64_t step_budget(const PlanOptions& options) {
  if (options.step_tokens > 0) return options.step_tokens;
  const double capacity = static_cast<double>(options.cap) * options.ranks * options.accumulate;
  const double fill = options.ranks == 1 ? 1 : kDefaultStepFill;  // nothing is shared
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(fill * capacity));
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
  fail_usage("{} '{}' must be one of refuse, truncate, skip, split", option, word);
}

Tail tail_of(const std::string& word, const std::string& option) {
  for (const auto value : {Tail::fill, Tail::drop, Tail::repeat}) {
    if (name_of(value) == word) return value;
  }
  fail_usage("{} '{}' must be one of fill, drop, repeat", option, word);
}

}  // namespace lockstep::data
