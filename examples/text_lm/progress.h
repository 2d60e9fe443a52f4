// How far the training is, in numbers of all ranks: when it is over, which learning rate is due, and a line
// of progress on rank 0 every few seconds.
//
// The ranks' numbers of a step are added up while the next step runs and are used one step late, so that no
// rank waits for them.
//
// Threads: the training thread.
#pragma once

#include <array>
#include <cstdint>

#include "examples/text_lm/options.h"
#include "runtime/comm/world.h"
#include "runtime/data/loader_batch.h"

namespace lockstep::text_lm {

/// A whole training, over all ranks, what was done before it was resumed included.
struct Summary {
  std::int64_t steps = 0;
  std::int64_t tokens = 0;
  std::int64_t tokens_here = 0;  ///< since it was resumed
  double seconds = 0;            ///< since it was resumed
  double data_wait = 0;          ///< seconds that this rank waited for batches after its first step
  double loss = 0;               ///< mean over the tokens predicted since the last line of progress, in nats
};

class Progress {
 public:
  /// Training begins now. `epoch_tokens`: of one time through the pages.
  Progress(const Options& options, std::uint64_t epoch_tokens, World& world);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// This rank has done a micro-batch, whose losses come to this sum.
  void add(double loss_sum, const data::Batch& batch);

  /// The optimizer step is done. All ranks call it.
  void end_step();

  /// How far the training was when it was saved; the same on all ranks.
  struct State {
    std::int64_t steps = 0;
    double tokens = 0;
    double seconds = 0;
  };

  /// Waits for the last step's numbers.
  State state();
  /// Goes on from there.
  void resume(const State& state);

  /// Whether the training ends here, or at the end of this epoch. The same on all ranks.
  bool over() const;
  bool over_after(std::uint64_t epoch) const;

  /// That were done.
  std::int64_t steps() const { return steps_; }

  /// Of the coming step: warm-up, then half a cosine down to a tenth.
  double learning_rate() const;

  /// Waits for the last step's numbers and says what the training came to.
  Summary finish();

 private:
  // What is added up over the ranks. Counts are exact as doubles below 2^53.
  enum Field : std::uint8_t { kLoss, kLossTokens, kTokens, kSeconds, kFields };
  using Numbers = std::array<double, kFields>;

  double done() const;
  double elapsed() const;
  void collect();
  void print();

  const Options& options_;
  double tokens_to_do_ = 0;  // where epochs are counted
  World& world_;
  std::uint64_t begin_ns_;
  std::uint64_t first_wait_ns_ = 0;  // for data, in the first step
  State before_;                     // was done before the training was resumed

  std::int64_t steps_ = 0;
  std::int64_t samples_ = 0;  // of this rank in this step
  std::int64_t padding_ = 0;  // likewise
  Numbers mine_{};            // of this rank in this step
  Numbers travelling_{};      // of the step before, being added up
  comm::WorkHandle sum_;
  double seconds_ = 0;  // rank 0's clock, as all ranks know it

  Numbers shown_{};  // summed since the last line of progress
  Numbers last_shown_{};
  double tokens_ = 0;  // of all steps
  double line_at_ = 0;
};

}  // namespace lockstep::text_lm
