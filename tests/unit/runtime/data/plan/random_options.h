// Random options for tests of planners.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <random>
#include <string>

#include "runtime/data/plan/options.h"

namespace lockstep::data {

class RandomOptions {
 public:
  explicit RandomOptions(unsigned seed) : engine_(seed) {}

  int pick(int from, int to) { return std::uniform_int_distribution<int>(from, to)(engine_); }
  bool one_in(int times) { return pick(1, times) == 1; }

  /// Options that can plan samples of up to `longest` tokens, for up to `max_ranks` ranks.
  PlanOptions next(std::uint32_t longest, int max_ranks) {
    PlanOptions options;
    options.ranks = pick(1, max_ranks);
    options.accumulate = pick(1, 5);
    options.too_long = static_cast<TooLong>(one_in(2) ? 0 : pick(0, 3));
    options.cap = options.too_long == TooLong::refuse
                      ? longest + static_cast<std::uint64_t>(pick(0, 1) * pick(0, 20'000))
                      : static_cast<std::uint64_t>(
                            pick(1 + static_cast<int>(longest) / 20, 2 * static_cast<int>(longest)));
    options.cost = {static_cast<double>(pick(0, 3) * pick(1, 9000)), static_cast<double>(pick(0, 3))};
    if (options.cost.a + options.cost.b == 0) options.cost.a = 1;
    options.seed = static_cast<std::uint64_t>(pick(0, 1'000'000));
    options.epoch = static_cast<std::uint64_t>(pick(0, 3));
    if (one_in(5)) options.order = Order::sequential;
    options.padded = one_in(4);
    options.pad_multiple = static_cast<std::uint32_t>(1 << pick(0, 4));
    options.step_stretch = one_in(3) ? 1 : pick(10, 30) / 10.0;
    options.equal_micro_batches = one_in(4);
    if (one_in(4)) {
      for (int rank = 0; rank < options.ranks; ++rank) options.speeds.push_back(pick(2, 30) / 10.0);
    }
    // From less than one micro-batch to a few for each rank.
    if (one_in(3)) {
      options.step_tokens = static_cast<std::uint64_t>(pick(1, 3 * options.ranks)) * options.cap *
                                static_cast<std::uint64_t>(pick(1, 20)) / 10 +
                            1;
    }
    return options;
  }

 private:
  std::mt19937 engine_;
};

inline std::string describe(const PlanOptions& options) {
  return fmt::format(
      "{} ranks x {}, cap {}, step tokens {}, stretch {}, cost {},{}, seed {}, epoch {}{}{}{}{}, {}, {}",
      options.ranks, options.accumulate, options.cap, step_budget(options), step_stretch(options),
      options.cost.a, options.cost.b, options.seed, options.epoch,
      options.order == Order::sequential ? ", sequential" : "",
      options.padded ? fmt::format(", padded to {}", options.pad_multiple) : "",
      options.equal_micro_batches ? ", equal numbers" : "",
      options.speeds.empty()
          ? ""
          : fmt::format(", speeds {} ... {}", options.speeds.front(), options.speeds.back()),
      name_of(options.too_long), name_of(options.tail));
}

}  // namespace lockstep::data
