// The planner turns the lengths of an epoch's samples into optimizer steps: every step gives each rank the
// same number of micro-batches, none over the token cap, and the ranks' costs a*L + b*L*L as equal as the
// data allow. Ranks of a step wait for the slowest, so unequal cost is time lost on all the others; plain
// token counts miss the quadratic part. Every sample appears exactly once; what cannot fill the last step
// leaves empty micro-batches there. No communication: the same lengths and options give the same plan in
// every process.
//
// Threads: a Plan is a value; const members are safe from any thread. make_plan() is safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/plan/item.h"

namespace lockstep::data {

/// A sample's place in its data set, from 0.
using SampleId = std::uint64_t;

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
  shuffled,    ///< by seed and epoch: groups of shards, then the samples within a group (order.h)
  sequential,  ///< as they lie in the data set; for validation
};

/// What becomes of a sample that is longer than the cap.
enum class TooLong {
  refuse,    ///< an error that names it
  truncate,  ///< its first tokens, as many as the cap allows
  skip,      ///< left out
  split,     ///< into pieces of the cap, and a rest: samples of their own (see piece_of)
};

/// What becomes of the epoch's last step where the samples left do not give every micro-batch one.
enum class Tail {
  fill,    ///< it is filled up with empty micro-batches
  drop,    ///< it is left out, with its samples
  repeat,  ///< samples from the beginning of its block are used again
};

/// A sample that was split appears as several: each has the sample's number and its own, from 0. In a mixture
/// (mixture.h) a sample appears once in each epoch of its data set, whose number, modulo 256, it has.
constexpr unsigned kPieceShift = 48;
constexpr unsigned kEpochShift = 40;
constexpr std::size_t kMostSamples = std::size_t{1} << kEpochShift;
inline SampleId sample_of(SampleId id) {
  return id & (kMostSamples - 1);
}
/// No sample is split into more pieces than fit into the number.
constexpr std::uint64_t kMostPieces = std::uint64_t{1} << (64 - kPieceShift);
/// The piece with number p holds the tokens from p x cap on.
inline std::uint64_t piece_of(SampleId id) {
  return id >> kPieceShift;
}
inline std::uint64_t epoch_of(SampleId id) {
  return (id >> kEpochShift) & 0xffU;
}

/// Of a step, over all ranks.
constexpr std::int64_t kMostMicroBatches = std::int64_t{1} << 20;

struct PlanOptions {
  int ranks = 1;
  /// Tokens that a micro-batch may hold: what fits into the device's memory. Padding counts when `padded`.
  std::uint64_t cap = 0;
  /// Micro-batches of each rank in a step (gradient accumulation).
  int accumulate = 1;
  Cost cost = {};
  std::uint64_t seed = 0;
  std::uint64_t epoch = 0;
  /// Upper bound of the step-mean ratio (see plan_stats.h); 1 is what random draws give. It holds as long as
  /// samples are left to exchange, so the final steps of a very small epoch may pass it, and so may steps of
  /// many ranks where a sample in a thousand is as long as the cap, and steps of two micro-batches that hold
  /// few samples; docs/users/batches.md says by how much.
  double randomness = 1.5;
  /// A micro-batch is rows x its longest sample, rather than its samples end to end.
  bool padded = false;
  Order order = Order::shuffled;
  /// A padded row's length is rounded up to a multiple of this, but not over the cap; 8 suits tensor cores.
  std::uint32_t pad_multiple = 8;
  /// The ranks' relative speeds, in any unit: a rank that is twice as fast gets twice the cost. Empty: all
  /// alike.
  std::vector<double> speeds = {};
  TooLong too_long = TooLong::refuse;
  Tail tail = Tail::fill;
  /// Longer samples count, and are handed out, as their first so many tokens; 0: as they are. Only a
  /// mixture's ranges set it.
  std::uint64_t longest = 0;
};

/// Throws UsageError naming the option that is wrong.
void check_options(const PlanOptions& options);

/// What the options call them, and back; throws UsageError naming `option`, the word and the choices.
std::string name_of(TooLong too_long);
std::string name_of(Tail tail);
TooLong too_long_of(const std::string& word, const std::string& option);
Tail tail_of(const std::string& word, const std::string& option);

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

struct PlannedMixture;  // mixture.h

/// Steps x ranks x micro-batches x samples.
class Plan {
 public:
  Plan() = default;
  Plan(PlanOptions options, std::size_t samples, std::string fingerprint);

  const PlanOptions& options() const { return options_; }
  /// Samples of the data set that was planned.
  std::size_t samples() const { return samples_; }
  /// Of the data and their order: a plan is only good for the data it was made for.
  const std::string& fingerprint() const { return fingerprint_; }
  /// Optimizer steps.
  std::size_t steps() const { return ends_.size() / micro_batches_per_step(); }
  /// Micro-batches of one rank in the whole epoch, empty ones included; the same on every rank.
  std::size_t micro_batches_per_rank() const {
    return steps() * static_cast<std::size_t>(options_.accumulate);
  }
  /// The samples of one micro-batch; none in a filled-up last step.
  std::span<const SampleId> micro_batch(std::size_t step, int rank, int micro_batch) const;

  /// All samples in the order of the micro-batches, and where each micro-batch ends: what a plan consists of
  /// beside its options, to be sent to another process.
  std::span<const SampleId> ids() const { return ids_; }
  std::span<const std::size_t> ends() const { return ends_; }

  /// Replaces the steps.
  void assign(std::span<const SampleId> ids, std::span<const std::size_t> ends) {
    ids_.assign(ids.begin(), ids.end());
    ends_.assign(ends.begin(), ends.end());
  }

  /// Adds the next micro-batch, in the order step, rank, micro-batch.
  void append(std::span<const SampleId> samples);

  /// Adds the next step, whose indices `id_of` turns into samples.
  template <typename IdOf>
  void append_step(const StepView& step, IdOf&& id_of) {
    const std::size_t begin = ids_.size();
    ids_.resize(begin + step.indices.size());
    for (std::size_t i = 0; i < step.indices.size(); ++i) ids_[begin + i] = id_of(step.indices[i]);
    for (const std::uint32_t end : step.ends) ends_.push_back(begin + end);
  }

  /// Adds the steps of another plan with the same ranks and micro-batches.
  void append(const Plan& more);

  /// Of the plan of a whole mixture; null for an epoch, and for a block.
  const PlannedMixture* mixture() const { return mixture_.get(); }
  void set_mixture(std::shared_ptr<const PlannedMixture> mixture) { mixture_ = std::move(mixture); }

  /// Makes room for so many samples.
  void reserve(std::size_t samples) { ids_.reserve(samples); }

 private:
  std::size_t micro_batches_per_step() const {
    return static_cast<std::size_t>(options_.ranks) * static_cast<std::size_t>(options_.accumulate);
  }

  PlanOptions options_;
  std::size_t samples_ = 0;
  std::string fingerprint_;
  std::vector<SampleId> ids_;
  std::vector<std::size_t> ends_;  // of each micro-batch, in ids_
  std::shared_ptr<const PlannedMixture> mixture_;
};

/// Samples that were longer than the cap.
struct OverLong {
  std::uint64_t samples = 0;
  std::uint64_t tokens = 0;  ///< of theirs that the plan leaves out
  SampleId first = 0;        ///< the first one's number

  /// Those of what comes behind.
  void add(const OverLong& more) {
    if (samples == 0) first = more.first;
    samples += more.samples;
    tokens += more.tokens;
  }
};

/// Plans one epoch of samples with these lengths in tokens. `fingerprint` names the data; where it is empty
/// the lengths' own is taken (fingerprint_of). Throws UsageError when an option is wrong, and Error when a
/// sample is empty or longer than the cap, naming the sample (unless the options say what to do with it:
/// `over_long` then counts them).
Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
               std::string fingerprint = {}, OverLong* over_long = nullptr);

/// A hash of lengths and order.
std::string fingerprint_of(std::span<const std::uint32_t> lengths);

}  // namespace lockstep::data
