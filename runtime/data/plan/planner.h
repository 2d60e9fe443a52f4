// The planner turns the lengths of an epoch's samples into optimizer steps:
//
//   lengths         ../lengths.cpp          a CSV file, histogram or pack; or any other LengthSource
//      |
//   order           order/order.h           shuffled by seed and epoch, block by block
//      |
//   steps           steps/step_packer.h     consecutive samples that fill the step's token budget; more if
//      |                                    one sample costs more than a rank's share
//   ranks           steps/rank_balancer.h   equal cost a*L + b*L*L, divided by the ranks' speeds
//      |
//   micro-batches   steps/micro_batches.h   each rank's share, first fit under the cap; if padded: samples of similar
//      |                                    length, cut before they go to ranks
//   Plan                                    by EpochPlanner or MixturePlanner, block by block
//
// The ranks of a step wait for the slowest one, so unequal cost is lost time on all others; equal token
// counts would miss the quadratic part. Ranks meet once a step, so they may have different numbers of
// micro-batches. Since a step takes consecutive samples of the shuffled order, it is a random draw, and one
// position in that order describes how much of the epoch is used (PlanState; with step_tokens, a few samples after
// it are used too). Every sample appears
// exactly once. The planner does not communicate: the same lengths and options give the same plan in every
// process.
//
// Threads: make_plan() and fingerprint_of() are safe from any thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/plan/options.h"

namespace lockstep::pack {
class Reader;
}

// The lengths of samples, from a column of a CSV file, a histogram, or packed files.

namespace lockstep::data {

struct Lengths {
  std::vector<std::uint32_t> tokens;  ///< of each sample, in the data's order
  std::string fingerprint;            ///< of the data and their order

  /// Adds the samples of other data.
  void append(const Lengths& more);
};

/// Each row is a sample. Lines that begin with # are comments before the first other line, which names the columns, and after
/// it if they have too few fields.
/// Throws Error with file and line if a row is malformed, a length is not a whole number in 1..2^32-1,
/// there are no rows, there is a blank line before the last row, or two columns are named `column`. Throws
/// UsageError with the columns' names if no column has that name.
Lengths lengths_from_csv(const std::filesystem::path& file, const std::string& column);

/// 32-bit little-endian numbers. Throws Error if the file's size is not a multiple of 4.
std::vector<std::uint32_t> numbers_from_u32(const std::filesystem::path& file);

/// The same as lengths, one per sample.
Lengths lengths_from_u32(const std::filesystem::path& file);

/// Makes `samples` lengths whose distribution follows the columns "length" and "count" as closely as whole
/// samples allow, in a fixed random order. The same file and number give the same list. Throws as
/// lengths_from_csv does.
Lengths lengths_from_histogram(const std::filesystem::path& file, std::size_t samples);

/// The lengths of a pack's samples. Empty ones (documents without a token) have length 0, and plans leave them out. Throws
/// Error with `name` if the pack does not hold tokens, or if all samples are empty.
Lengths lengths_from_pack(const pack::Reader& reader, const std::string& name);

/// How many of these samples are empty.
std::size_t count_empty(std::span<const std::uint32_t> lengths);

/// The lengths of several packs' samples, one pack after the other.
Lengths lengths_from_packs(std::span<const std::filesystem::path> packs);

// The source of the planner's lengths: memory, an index on disk, or a formula. The planner reads a range of
// samples at a time, so it can plan a billion samples whose lengths do not fit into memory.

class LengthSource {
 public:
  virtual ~LengthSource() = default;
  LengthSource() = default;
  LengthSource(const LengthSource&) = delete;
  LengthSource& operator=(const LengthSource&) = delete;

  /// The number of samples.
  virtual std::size_t size() const = 0;

  /// Writes the lengths in tokens of the samples first, first + 1, ... into `lengths`.
  virtual void read(std::size_t first, std::span<std::uint32_t> lengths) const = 0;

  /// Identifies the data and their order: sources with equal fingerprints have the same samples.
  virtual std::string fingerprint() const = 0;
};

/// Lengths in memory, which must outlive this object.
class LengthsInMemory final : public LengthSource {
 public:
  LengthsInMemory(std::span<const std::uint32_t> lengths, std::string fingerprint)
      : lengths_(lengths), fingerprint_(std::move(fingerprint)) {}

  std::size_t size() const override { return lengths_.size(); }
  void read(std::size_t first, std::span<std::uint32_t> lengths) const override {
    std::copy_n(lengths_.begin() + static_cast<std::ptrdiff_t>(first), lengths.size(), lengths.begin());
  }
  std::string fingerprint() const override { return fingerprint_; }

 private:
  std::span<const std::uint32_t> lengths_;
  std::string fingerprint_;
};

// A plan lists the samples of each rank, step by step and micro-batch by micro-batch.

/// The mixture that a plan was made for, and how much of it the plan uses.
struct PlannedMixture {
  Mixture mixture;
  std::vector<std::uint64_t> drawn;  ///< samples drawn from each part, in all its epochs
  std::vector<SampleId> left;        ///< pieces of those samples that are in no step when the run ends
};

/// Steps x ranks x micro-batches x samples. The ranks of a step may have different numbers of micro-batches,
/// also none.
class Plan {
 public:
  Plan() = default;
  /// `samples` is the number of samples of the data set. `fingerprint` identifies the data and their order: a
  /// plan is valid for these data only.
  Plan(PlanOptions options, std::size_t samples, std::string fingerprint);

  const PlanOptions& options() const { return options_; }
  std::size_t samples() const { return samples_; }
  const std::string& fingerprint() const { return fingerprint_; }

  /// The number of optimizer steps.
  std::size_t steps() const { return rank_ends_.size() / ranks(); }
  /// The number of micro-batches of a rank in a step.
  std::size_t micro_batches(std::size_t step, int rank) const {
    const std::size_t at = index_of(step, rank);
    return rank_ends_[at] - begin_of(rank_ends_, at);
  }
  /// The samples of one micro-batch; `micro_batch` must be below micro_batches(step, rank).
  std::span<const SampleId> micro_batch(std::size_t step, int rank, std::size_t micro_batch) const {
    const std::size_t at = begin_of(rank_ends_, index_of(step, rank)) + micro_batch;
    const std::size_t begin = begin_of(batch_ends_, at);
    return std::span(ids_).subspan(begin, batch_ends_[at] - begin);
  }
  /// The samples of all ranks in a step, rank by rank.
  std::span<const SampleId> step_samples(std::size_t step) const;
  /// All samples, step by step.
  std::span<const SampleId> sample_ids() const { return ids_; }

  /// A hash of the steps, to compare the plans of two ranks.
  std::string steps_fingerprint() const;

  /// Adds a step that has a list of micro-batches for each rank.
  void append_step(const std::vector<std::vector<std::vector<SampleId>>>& ranks);

  /// Adds a step (steps/item.h). `id_of` maps its indices to samples.
  template <typename StepView, typename IdOf>
  void append_step(const StepView& step, IdOf&& id_of) {
    const std::size_t begin = ids_.size();
    const std::size_t first_batch = batch_ends_.size();
    ids_.resize(begin + step.indices.size());
    for (std::size_t i = 0; i < step.indices.size(); ++i) ids_[begin + i] = id_of(step.indices[i]);
    for (const std::uint32_t end : step.batch_ends) batch_ends_.push_back(begin + end);
    for (const std::uint32_t end : step.rank_ends) rank_ends_.push_back(first_batch + end);
  }

  /// Adds the steps of another plan for the same number of ranks.
  void append(const Plan& more);

  void reserve(std::size_t samples) { ids_.reserve(samples); }

  /// Set in the plan of a whole mixture; null in the plan of an epoch or of a block.
  const PlannedMixture* mixture() const { return mixture_.get(); }
  void set_mixture(std::shared_ptr<const PlannedMixture> mixture) { mixture_ = std::move(mixture); }

 private:
  std::size_t ranks() const { return static_cast<std::size_t>(options_.ranks); }
  std::size_t index_of(std::size_t step, int rank) const {
    return step * ranks() + static_cast<std::size_t>(rank);
  }
  static std::size_t begin_of(const std::vector<std::size_t>& ends, std::size_t at) {
    return at == 0 ? 0 : ends[at - 1];
  }

  PlanOptions options_;
  std::size_t samples_ = 0;
  std::string fingerprint_;
  std::vector<SampleId> ids_;
  std::vector<std::size_t> batch_ends_;  // of each micro-batch, in ids_
  std::vector<std::size_t> rank_ends_;   // of each step and rank, in batch_ends_
  std::shared_ptr<const PlannedMixture> mixture_;
};

/// Plans one epoch of samples with these lengths in tokens. `fingerprint` identifies the data; if it is
/// empty, fingerprint_of(lengths) is used. Throws UsageError if an option is wrong, and Error naming a
/// sample that (if too_long is refuse) is longer than the cap. Samples of length 0 are left out.
Plan make_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
               std::string fingerprint = {});

/// A hash of the lengths in their order.
std::string fingerprint_of(std::span<const std::uint32_t> lengths);

/// The shape of a micro-batch.
struct MicroBatchShape {
  std::int64_t samples = 0;
  std::int64_t longest = 0;  ///< tokens of the longest sample; of each row, if padded
  std::int64_t tokens = 0;   ///< in all; with the padding, if padded: samples x longest
  std::int64_t squares = 0;  ///< sum of the samples' squared lengths; of the rows', if padded
};

/// The shape of a micro-batch of a plan with these options.
MicroBatchShape shape_of(std::span<const SampleId> samples, std::span<const std::uint32_t> lengths,
                         const PlanOptions& options);

inline double cost_of(const MicroBatchShape& shape, const Cost& cost) {
  return cost.a * static_cast<double>(shape.tokens) + cost.b * static_cast<double>(shape.squares);
}

/// The micro-batch of any rank with the highest cost by the plan's Cost, to try before training whether it fits into memory
/// (runtime/train/debug.h). `lengths` are those that the plan was made of.
/// All zero for a plan without steps.
MicroBatchShape largest_micro_batch(const Plan& plan, std::span<const std::uint32_t> lengths);

/// How far a plan keeps the promise of step_tokens: "steps hold 0.98 of the 1024 tokens of step_tokens on average, and at
/// most 1.00 (212 steps)". The last step, which may be the epoch's rest, does not count if there are others.
std::string describe_step_sizes(const Plan& plan, std::span<const std::uint32_t> lengths);

// Plans an epoch block by block, so that even a billion samples need memory for a few blocks only. The
// state of the epoch can be saved between any two steps; another planner continues from it, on the
// same number of ranks or another one.
//
//   EpochPlanner planner(lengths, options);
//   for (PlannedBlock block; planner.next_block(block);) {
//     ... block.plan.steps() ...
//     PlanState state = state_after(block, steps);  // `steps` of this block are done
//   }
//   EpochPlanner resumed(lengths, options, state);

// The position of an epoch or a mixture between two optimizer steps: enough to continue it in another
// process, also with another number of ranks. A step takes consecutive samples of the epoch's order, so one
// position in that order tells which samples are used, for any number of ranks. Steps whose tokens are a
// promise also take a few samples after that position.

/// The position of a mixture (Mixture). The first three members have one entry for each data set.
struct MixturePosition {
  std::vector<std::uint64_t> drawn;   ///< samples drawn so far, in all epochs
  std::vector<std::uint64_t> piece;   ///< next piece of the last of these samples; 0: it is complete
  std::vector<std::uint64_t> tokens;  ///< tokens drawn so far
  /// SampleIds of drawn samples that are in no step yet, because a step took later ones that fit. One list for all data
  /// sets, in the order in which they were drawn.
  std::vector<std::uint64_t> waiting = {};

  bool operator==(const MixturePosition&) const = default;
};

/// The next sample in the order: item `used` of an epoch's block, or a position in each data set of a
/// mixture.
struct PlanPosition {
  std::uint64_t block = 0;
  std::uint64_t used = 0;
  /// Samples after the next one that are used already: how many places after it. Only in an epoch.
  std::vector<std::uint64_t> ahead = {};
  std::optional<MixturePosition> mixture = std::nullopt;

  bool operator==(const PlanPosition&) const = default;
};

struct PlanState {
  /// Fingerprints of the data and of the order of samples. A planner continues only with the same data and
  /// order.
  std::string data;
  std::string order;
  /// Optimizer steps so far.
  std::uint64_t steps = 0;
  PlanPosition position;

  bool operator==(const PlanState&) const = default;
};

/// How much of each part is used in this state.
std::vector<MixtureProgress> progress_of(const Mixture& mixture, const PlanState& state);

/// Throws UsageError if the mixture is wrong or does not have `source_samples` samples.
void check_mixture(const Mixture& mixture, std::size_t source_samples);

/// Identifies the parts and weights. A resumed run must have the same ones; its number of steps may differ.
std::string fingerprint_of(const Mixture& mixture);

/// As a JSON object. from_json throws Error naming the member that is missing or wrong.
void to_json(nlohmann::json& json, const PlanState& state);
void from_json(const nlohmann::json& json, PlanState& state);

// The interface of the planners, which plan optimizer steps block by block: an epoch of one data set
// (EpochPlanner), or a mixture of several (MixturePlanner).

class StepPacker;

struct PlannedBlock {
  Plan plan;                        ///< the steps of this block, at least one
  PlanState start;                  ///< the state before its first step
  std::vector<PlanPosition> after;  ///< the position after each step
};

/// The state after the first `steps` steps of the block. Throws UsageError if the block has fewer.
PlanState state_after(const PlannedBlock& block, std::size_t steps);

class BlockwisePlanner {
 public:
  virtual ~BlockwisePlanner();
  BlockwisePlanner(const BlockwisePlanner&) = delete;
  BlockwisePlanner& operator=(const BlockwisePlanner&) = delete;

  /// Replaces `block` by the next one. Returns false, and a block without steps, after the last one.
  virtual bool next_block(PlannedBlock& block) = 0;

  /// The state before the next block.
  const PlanState& state() const { return state_; }

 protected:
  /// `source` must outlive the planner. Throws UsageError if an option is wrong.
  BlockwisePlanner(const LengthSource& source, const PlanOptions& options);

  /// Throws Error if the state belongs to other data or to another order. `order_options` says in the message
  /// which options determine the order.
  void expect_same_order(const PlanState& state, const char* order_options) const;

  const LengthSource& source_;
  PlanOptions options_;
  std::unique_ptr<StepPacker> packer_;
  PlanState state_;  // after the steps planned so far
};

class EpochPlanner : public BlockwisePlanner {
 public:
  /// `source` must outlive the planner. Throws UsageError if an option is wrong.
  EpochPlanner(const LengthSource& source, const PlanOptions& options);

  /// Continues from a state. With the same options it plans the steps that would have followed. Throws Error
  /// that says what differs if the state belongs to other data or to another order.
  EpochPlanner(const LengthSource& source, const PlanOptions& options, const PlanState& state);

  ~EpochPlanner() override;

  /// Throws Error naming a sample that (if too_long is refuse) is longer than the cap.
  bool next_block(PlannedBlock& block) override;

 private:
  void load_next_block();
  bool complete_last_step();
  PlanPosition position_at(std::size_t place) const;
  void drop_used(std::size_t place);
  void use_ahead(std::size_t place);
  SampleId id_of(std::uint32_t index) const;
  std::string order_fingerprint() const;

  struct Pool;
  std::unique_ptr<Pool> pool_;
};

// Plans a mixture (Mixture) block by block. It draws samples one by one, each from the data set whose
// share of the tokens is furthest below its weight, so that every step has nearly the shares that the
// weights demand. As in an epoch, a step takes consecutive samples of this order, and if its tokens are a
// promise also later ones that fit; those between them wait for the next steps. When a block ends, the samples that were
// drawn for later steps are put back. The pieces of a split sample are drawn one by one, each at a turn of its data set.
//
// Memory: a block of steps, and one block of samples of each data set.

class MixturePlanner final : public BlockwisePlanner {
 public:
  /// `source` holds the data sets one after the other, and must outlive the planner. `options.epoch` is not
  /// used: each data set counts its own epochs. Throws UsageError if an option or the mixture is wrong.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture);

  /// Continues from a state, as EpochPlanner does.
  MixturePlanner(const LengthSource& source, const PlanOptions& options, Mixture mixture,
                 const PlanState& state);

  ~MixturePlanner() override;

  /// Returns false after the last step of the mixture. Throws Error naming a sample that (if
  /// too_long is refuse) is longer than the cap.
  bool next_block(PlannedBlock& block) override;

  /// The samples that wait, and the pieces of split samples that are in no step yet, although an earlier piece of the
  /// sample is.
  std::vector<SampleId> pending_pieces() const;

 private:
  struct PartCursor;
  struct Drawn;
  void begin_block();
  void add_waiting();
  std::vector<PartCursor> cursors_at(const MixturePosition& position) const;
  void draw(std::size_t count);
  void draw_one();
  std::size_t part_furthest_below_weight() const;
  std::uint32_t length_of(SampleId id, std::uint32_t length, std::uint64_t piece,
                          const std::string& part) const;
  void advance(std::size_t end);
  std::size_t part_of(SampleId id) const;

  const Mixture mixture_;
  std::unique_ptr<Drawn> drawn_;
};

/// Plans a whole run, as make_plan() plans an epoch. The plan has a mixture().
Plan make_mixture_plan(std::span<const std::uint32_t> lengths, const PlanOptions& options,
                       const Mixture& mixture, std::string fingerprint);

}  // namespace lockstep::data
