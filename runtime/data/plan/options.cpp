#include "runtime/data/plan/options.h"

#include <array>
#include <cmath>
#include <limits>

#include "common/error.h"

namespace lockstep::data {
namespace {

constexpr std::int64_t kMaxMicroBatches = std::int64_t{1} << 20;  // of all ranks in a step
// Ranks share cost, not tokens, and whole samples rarely fill a micro-batch: a larger share of ranks x
// accumulate x cap would give more ranks an additional micro-batch.
constexpr double kDefaultStepFill = 0.95;
constexpr double kDefaultStretch = 1.5;
constexpr std::array<const char*, 4> kTooLongNames = {"refuse", "truncate", "skip", "split"};
constexpr std::array<const char*, 3> kTailNames = {"fill", "drop", "repeat"};

template <typename T, std::size_t count>
T value_of(const std::string& word, const std::array<const char*, count>& names, const std::string& option) {
  std::string choices;
  for (std::size_t i = 0; i < count; ++i) {
    if (word == names[i]) return static_cast<T>(i);
    choices += (i == 0 ? "" : ", ") + std::string(names[i]);
  }
  fail_usage("{} must be one of {}, not '{}'", option, choices, word);
}

}  // namespace

Cost transformer_cost(const TransformerSizes& sizes) {
  const auto positive = [](double value, const char* name) {
    if (!(value > 0)) fail_usage("the {} of a transformer must be above 0, not {}", name, value);
    return value;
  };
  const double width = positive(static_cast<double>(sizes.width), "width");
  const double layers = positive(static_cast<double>(sizes.layers), "number of layers");
  const double of_token = 12 * width * width + width * static_cast<double>(sizes.vocabulary) / layers;
  const double of_pair =
      (sizes.causal ? 1 : 2) * width * positive(sizes.attention, "factor of the time of attention");
  return {.a = of_token / of_pair, .b = 1};
}

void check_options(const PlanOptions& options) {
  if (options.ranks < 1) fail_usage("ranks must be at least 1, not {}", options.ranks);
  if (options.accumulate < 1) fail_usage("accumulate must be at least 1, not {}", options.accumulate);
  const std::int64_t batches = std::int64_t{options.ranks} * options.accumulate;
  if (batches > kMaxMicroBatches) {
    fail_usage("ranks x accumulate must be at most {}, not {} x {} = {}", kMaxMicroBatches, options.ranks,
               options.accumulate, batches);
  }
  if (options.cap < 1) fail_usage("cap must be at least 1 token per micro-batch");
  if (options.cap > std::numeric_limits<std::uint32_t>::max())
    fail_usage("cap must be below 2^32, not {}", options.cap);
  const Cost& cost = options.cost;
  if (!std::isfinite(cost.a) || !std::isfinite(cost.b) || cost.a < 0 || cost.b < 0 || cost.a + cost.b <= 0) {
    fail_usage("cost must be two finite numbers, neither negative and not both 0, not {},{}", cost.a, cost.b);
  }
  const double stretch = step_stretch(options);
  if (!std::isfinite(stretch) || stretch < 1) {
    fail_usage("step_stretch must be a finite number of at least 1, not {}", stretch);
  }
  if (options.step_tokens > std::numeric_limits<std::int64_t>::max()) {
    fail_usage("step_tokens must be below 2^63, not {}", options.step_tokens);
  }
  const double samples = static_cast<double>(step_budget(options)) * stretch;
  if (!std::isfinite(cost.of(options.cap) * samples)) {
    fail_usage("cost {},{} is too large for steps of {} tokens: use a larger unit of cost", cost.a, cost.b,
               step_budget(options));
  }
  if (options.pad_multiple < 1) fail_usage("pad_multiple must be at least 1");
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

std::uint64_t step_budget(const PlanOptions& options) {
  if (options.step_tokens > 0) return options.step_tokens;
  const double capacity = static_cast<double>(options.cap) * options.ranks * options.accumulate;
  const double fill = options.ranks == 1 ? 1 : kDefaultStepFill;  // one rank shares with nobody
  return std::max<std::uint64_t>(1, static_cast<std::uint64_t>(fill * capacity));
}

double step_stretch(const PlanOptions& options) {
  return options.step_stretch.value_or(options.step_tokens > 0 ? 1 : kDefaultStretch);
}

std::string name_of(TooLong too_long) {
  return kTooLongNames.at(static_cast<std::size_t>(too_long));
}

std::string name_of(Tail tail) {
  return kTailNames.at(static_cast<std::size_t>(tail));
}

TooLong too_long_of(const std::string& word, const std::string& option) {
  return value_of<TooLong>(word, kTooLongNames, option);
}

Tail tail_of(const std::string& word, const std::string& option) {
  return value_of<Tail>(word, kTailNames, option);
}

void check_sample(const std::string& sample, std::uint32_t length, const PlanOptions& options) {
  if (options.too_long == TooLong::refuse && length > options.cap) {
    fail(
        "{} has {} tokens, over the cap of {} per micro-batch: raise the cap, shorten the sample, or choose to truncate, skip or split such samples (too_long)",
        sample, length, options.cap);
  }
  if (options.too_long == TooLong::split && length > 0 && (length - 1) / options.cap >= kMaxPieces) {
    fail("{} has {} tokens, more than {} pieces of the cap of {}: raise the cap", sample, length, kMaxPieces,
         options.cap);
  }
}

}  // namespace lockstep::data
