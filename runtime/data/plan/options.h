// The options of a plan: ranks, cap, step size, cost and order, and the mixture of data sets if there are several.
//
// Threads: values; functions are safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

// The number by which a plan names a sample. It also holds the piece, if over-long samples are split, and the
// epoch of the sample's data set, in a mixture.

namespace lockstep::data {

/// Bits 0-39: the sample's number in its data set, from 0. Bits 40-47: in a mixture, the epoch of its data
/// set modulo 256. Bits 48-63: the piece of a sample that was split, from 0.
using SampleId = std::uint64_t;

constexpr unsigned kEpochShift = 40;
/// A SampleId holds the epoch modulo this.
constexpr std::uint64_t kEpochNumbers = 256;
constexpr unsigned kPieceShift = 48;
constexpr std::size_t kMaxSamples = std::size_t{1} << kEpochShift;
/// A sample is split into at most this many pieces.
constexpr std::uint64_t kMaxPieces = std::uint64_t{1} << (64 - kPieceShift);

inline SampleId sample_of(SampleId id) {
  return id & (kMaxSamples - 1);
}
/// Piece p begins at token p x cap.
inline std::uint64_t piece_of(SampleId id) {
  return id >> kPieceShift;
}
inline std::uint64_t epoch_of(SampleId id) {
  return (id >> kEpochShift) & 0xffU;
}

/// The cost of a sample of L tokens: a*L + b*L*L, in any unit. For a transformer, use transformer_cost().
struct Cost {
  double a = 1;
  double b = 0;

  double of(std::uint64_t length) const {
    const auto tokens = static_cast<double>(length);
    return tokens * (a + b * tokens);
  }
  /// a ÷ b; infinite if b is 0. Only this decides what is equal.
  double ratio() const { return b > 0 ? a / b : std::numeric_limits<double>::infinity(); }
};

/// The sizes that decide the cost of a transformer.
struct TransformerSizes {
  std::int64_t width = 0;
  std::int64_t layers = 1;
  std::int64_t vocabulary = 0;  ///< of the output layer; 0: there is none
  /// Attention computes only the pairs that a causal mask leaves, as FlashAttention's kernels do; false: all pairs.
  bool causal = true;
  /// The time of an operation of attention, exponents included, ÷ that of one of the linear layers.
  double attention = 1.25;
};

/// The cost of its forward and backward, with b = 1: a is the operations of the linear layers (12 width^2 in each layer, and
/// width * vocabulary) for a token ÷ those of attention for a pair of tokens (2 width in each layer, half of it if causal).
/// Throws UsageError naming the size that is not positive.
Cost transformer_cost(const TransformerSizes& sizes);

/// The order in which an epoch takes the samples.
enum class Order {
  shuffled,    ///< by seed and epoch (order/order.h)
  sequential,  ///< the order of the data set; for validation
};

/// How to plan a sample that is longer than the cap.
enum class TooLong {
  refuse,    ///< throw an error that names the sample
  truncate,  ///< use only its first `cap` tokens
  skip,      ///< leave it out
  split,     ///< cut it into pieces of `cap` tokens and a rest, each planned as a sample (piece_of)
};

/// How to plan the epoch's last step if fewer samples are left than there are ranks.
enum class Tail {
  fill,    ///< some ranks have no micro-batch in the step
  drop,    ///< leave out the step and its samples
  repeat,  ///< use its samples again until each rank has one
};

struct PlanOptions {
  int ranks = 1;
  /// Maximum tokens of a micro-batch: limited by the device's memory. Padding counts if `padded`.
  std::uint64_t cap = 0;
  /// Approximate number of micro-batches of a rank in a step. Only the default of `step_tokens` uses it.
  int accumulate = 1;
  /// Tokens of a step, all ranks together. 0: 0.95 x ranks x accumulate x cap (1 x on one rank). If it is set,
  /// it is a promise on any number of ranks: steps never exceed it, unless `step_stretch` is set too or a
  /// single sample is longer, and an epoch's steps are filled with samples that come a little later in the
  /// order, so that they are nearly full.
  std::uint64_t step_tokens = 0;
  /// A step may grow to this many times its budget if one sample costs more than a rank's share: the other
  /// ranks would only wait for that sample. 1: never. Unset: 1.5, or 1 if `step_tokens` is set.
  std::optional<double> step_stretch = std::nullopt;
  /// All ranks have equally many micro-batches in a step, some of them empty. For models that communicate
  /// inside forward (synchronised batch norm, pipelines).
  bool equal_micro_batches = false;
  Cost cost = {};
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// A micro-batch takes rows x its longest sample instead of the sum of its samples.
  bool padded = false;
  Order order = Order::shuffled;
  /// The length of a padded row is rounded up to a multiple of this, up to the cap; 8 suits tensor cores.
  std::uint32_t pad_multiple = 8;
  /// The ranks' relative speeds, in any unit: a rank that is twice as fast gets twice the cost. Empty: equal.
  std::vector<double> speeds = {};
  TooLong too_long = TooLong::refuse;
  Tail tail = Tail::fill;
};

// A mixture trains on several data sets together. Each has a weight: its share of the tokens. Each data set
// is used epoch by epoch, in a new order every time, and every sample appears once in each epoch of its
// data set; so a small data set with a large weight is repeated more often than a large one. A mixture is
// one run of a given number of optimizer steps, all of them full.
//
//   Mixture mixture{.parts = {{"web", web_samples}, {"books", book_samples}}, .weights = {0.9, 0.1}, .steps = 10000};

/// One of the data sets: consecutive samples of the source, after those of the parts before it.
struct MixturePart {
  std::string name;  ///< for messages
  std::size_t samples = 0;
};

struct Mixture {
  std::vector<MixturePart> parts;
  std::vector<double> weights;  ///< one for each part, above 0, in any unit
  std::uint64_t steps = 0;      ///< of the whole run; a resumed run may have more than before

  /// The samples of all parts.
  std::size_t samples() const;
};

/// How much of a part is used.
struct MixtureProgress {
  std::string name;
  std::uint64_t epoch = 0;          ///< the part's current epoch, from 0
  std::uint64_t samples = 0;        ///< samples drawn in that epoch
  std::uint64_t epoch_samples = 0;  ///< samples of an epoch
};

/// Throws UsageError naming the option that is wrong.
void check_options(const PlanOptions& options);

/// The names that the command line and plan files use. too_long_of() and tail_of() throw UsageError with
/// `option`, the word and the choices if the word is unknown.
std::string name_of(TooLong too_long);
std::string name_of(Tail tail);
TooLong too_long_of(const std::string& word, const std::string& option);
Tail tail_of(const std::string& word, const std::string& option);

/// Maximum tokens of a step that does not stretch: `step_tokens` or its default.
std::uint64_t step_budget(const PlanOptions& options);

/// `step_stretch` or its default.
double step_stretch(const PlanOptions& options);

/// The tokens that a plan uses of a sample (or of a piece of it) of `length` tokens.
inline std::uint32_t planned_length(SampleId id, std::uint32_t length, const PlanOptions& options) {
  const std::uint64_t begin = piece_of(id) * options.cap;
  if (options.too_long == TooLong::refuse || length <= begin) return length;
  return static_cast<std::uint32_t>(std::min<std::uint64_t>(options.cap, length - begin));
}

/// Throws Error if no plan can contain the sample, because it is over the cap, or of too many pieces.
/// `sample` is how the message names it.
void check_sample(const std::string& sample, std::uint32_t length, const PlanOptions& options);

/// The length of a padded row whose longest sample has `length` tokens.
inline std::uint64_t padded_length(std::uint64_t length, std::uint64_t multiple, std::uint64_t cap) {
  const std::uint64_t rounded = (length + multiple - 1) / multiple * multiple;
  return rounded <= cap ? rounded : std::max(length, cap);
}

}  // namespace lockstep::data
