// Tracks the progress of the training over all ranks: whether it is over, the learning rate, and a line of
// progress on rank 0 every few seconds.
//
// The numbers of a step are summed over the ranks while the next step runs, and used one step late, so that
// no rank waits for them.
//
// Threads: the training thread.
#pragma once

#include <cstdint>

#include "examples/text_lm/options.h"
#include "runtime/comm/world.h"
#include "runtime/data/loader_options.h"

namespace lockstep::text_lm {

/// The whole training on all ranks, including the part before it was resumed.
struct Summary {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_here = 0;  ///< since it was resumed
  double seconds = 0;            ///< since it was resumed
  double data_wait = 0;          ///< seconds that this rank waited for batches after its first step
  double loss = 0;               ///< mean in nats over the tokens predicted since the last line of progress
};

class Progress {
 public:
  /// The training begins now. `epoch_tokens`: the tokens of all pages.
  Progress(const Options& options, std::uint64_t epoch_tokens, World& world);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Adds a micro-batch of this rank, with the sum of its losses.
  void add(double loss_sum, const data::Batch& batch);

  /// Ends an optimizer step. All ranks call it.
  void end_step();

  /// The progress in a checkpoint; the same on all ranks.
  struct State {
    std::int64_t steps = 0;
    double tokens = 0;
    double seconds = 0;
  };

  /// Waits for the last step's numbers.
  State state();
  /// Continues from this state.
  void resume(const State& state);

  /// Whether the training ends now, or at the end of this epoch. The same on all ranks.
  bool over() const { return !options_.epochs && done() >= 1; }
  bool over_after(std::uint64_t epoch) const;

  /// The number of finished steps.
  std::int64_t steps() const { return steps_; }

  /// The factor of the next step's learning rate: warm-up, then half a cosine down to a tenth.
  double learning_rate_factor() const;

  /// Waits for the last step's numbers and returns the results.
  Summary finish();

 private:
  // The numbers that are summed over the ranks. Counts are exact as doubles below 2^53.
  struct Numbers {
    double loss = 0;
    double loss_tokens = 0;
    double tokens = 0;
    double seconds = 0;  // rank 0's
  };

  double done() const;
  double elapsed() const;
  void collect();
  void print();

  const Options& options_;
  double total_tokens_ = 0;  // to train on, if epochs are counted
  World& world_;
  std::uint64_t begin_ns_;
  std::uint64_t first_wait_ns_ = 0;  // for data, in the first step
  State before_;                     // the progress before the training was resumed

  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;  // of this rank in this step
  std::int64_t padding_ = 0;  // likewise
  Numbers mine_{};            // of this rank in this step
  Numbers summed_{};          // of the previous step; sum_ writes it
  comm::WorkHandle sum_;
  double seconds_ = 0;  // since the training began, by rank 0's clock; the same on all ranks

  Numbers shown_{};  // summed since the last line of progress
  Numbers last_shown_{};
  double tokens_ = 0;  // of all steps
  double line_at_ = 0;
};

}  // namespace lockstep::text_lm
