// What a plan is made for: ranks, cap, step size, cost, order.
//
// Threads: values; functions are safe from any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/data/plan/sample_id.h"

namespace lockstep::data {

/// What a sample of L tokens costs: a*L + b*L*L, in any unit. For a transformer of width h, a/b is about 6h.
struct Cost {
  double a = 1;
  double b = 0;

  double of(std::uint64_t length) const {
    const auto tokens = static_cast<double>(length);
    return tokens * (a + b * tokens);
  }
};

/// In which order an epoch takes the samples.
enum class Order {
  shuffled,    ///< by seed and epoch (order/order.h)
  sequential,  ///< as they lie in the data set; for validation
};

/// What happens to a sample that is longer than the cap.
enum class TooLong {
  refuse,    ///< an error that names it
  truncate,  ///< only its first `cap` tokens are used
  skip,      ///< left out
  split,     ///< cut into pieces of `cap` tokens and a rest, each a sample of its own (piece_of)
};

/// What happens to the epoch's last step where fewer samples are left than there are ranks.
enum class Tail {
  fill,    ///< ranks without a sample have no micro-batch in it
  drop,    ///< the step is left out, and its samples with it
  repeat,  ///< its samples are used again, until each rank has one
};

/// Upper bound of ranks x accumulate.
constexpr std::int64_t kMaxMicroBatches = std::int64_t{1} << 20;

/// Part of ranks x accumulate x cap that a step's tokens fill where `step_tokens` is not given. Ranks share
/// cost, not tokens, and whole samples rarely fill a micro-batch: with less room more ranks need a
/// micro-batch more.
constexpr double kDefaultStepFill = 0.95;

struct PlanOptions {
  int ranks = 1;
  /// Tokens that a micro-batch may hold: what fits into the device's memory. Padding counts when `padded`.
  std::uint64_t cap = 0;
  /// Micro-batches that a rank has in a step, about: what the default of `step_tokens` follows from.
  int accumulate = 1;
  /// Tokens of a step, of all ranks together; 0: 0.95 x ranks x accumulate x cap (1 x on one rank). A step
  /// holds no more, unless it stretches or a single sample is longer.
  std::uint64_t step_tokens = 0;
  /// Where some rank works longer than the others whatever they get of the step's samples (one sample costs
  /// more than a rank's share), the step may take more samples, up to this many times `step_tokens`; 1:
  /// never.
  double step_stretch = 1.5;
  /// All ranks have equally many micro-batches in a step, some of them empty: for models that communicate
  /// inside forward (synchronised batch norm, pipelines).
  bool equal_micro_batches = false;
  Cost cost = {};
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// A micro-batch is rows x its longest sample, rather than its samples end to end.
  bool padded = false;
  Order order = Order::shuffled;
  /// A padded row's length is rounded up to a multiple of this, but not over the cap; 8 suits tensor cores.
  std::uint32_t pad_multiple = 8;
  /// The ranks' relative speeds, in any unit: a rank that is twice as fast gets twice the cost. Empty: all
  /// equal.
  std::vector<double> speeds = {};
  TooLong too_long = TooLong::refuse;
  Tail tail = Tail::fill;
  /// Samples count, and are handed out, up to this many of their first tokens; 0: whole. Only a mixture's
  /// ranges set it.
  std::uint64_t longest = 0;
};

/// Throws UsageError naming the option that is wrong.
void check_options(const PlanOptions& options);

/// The same with another cost and other speeds. Throws as check_options() does.
PlanOptions with_cost(PlanOptions options, const Cost& cost, const std::vector<double>& speeds);

/// The names that the command line and plan files use. Throws UsageError naming `option`, the word and the
/// choices.
std::string name_of(TooLong too_long);
std::string name_of(Tail tail);
TooLong too_long_of(const std::string& word, const std::string& option);
Tail tail_of(const std::string& word, const std::string& option);

/// Tokens that a step may hold before it stretches: `step_tokens`, or its default.
std::uint64_t step_budget(const PlanOptions& options);

/// The tokens that a plan made with these options takes of a sample (or of a piece of one) of `length`
/// tokens.
inline std::uint32_t planned_length(SampleId id, std::uint32_t length, const PlanOptions& options) {
  if (options.longest > 0 && length > options.longest) length = static_cast<std::uint32_t>(options.longest);
  const std::uint64_t begin = piece_of(id) * options.cap;
  if (options.too_long == TooLong::refuse || length <= begin) return length;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options.cap, length - begin));
}

/// The length of a padded row whose longest sample has `length` tokens.
inline std::uint64_t padded_length(std::uint64_t length, std::uint64_t multiple, std::uint64_t cap) {
  const std::uint64_t rounded = (length + multiple - 1) / multiple * multiple;
  return rounded <= cap ? rounded : std::max(length, cap);
}

}  // namespace lockstep::data
