// How far the training is, on all ranks together: when it is over, the learning rate, a line every few seconds, and what a
// checkpoint must know of it.
//
// No step waits for this. Losses are summed on the device, and read every few seconds. The other numbers of a step are
// summed over the ranks while the next step runs, and used one step late.
//
// Threads: the training thread.
#pragma once

#include <fmt/format.h>
#include <torch/torch.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "examples/text_lm/options.h"
#include "runtime/data/loader.h"
#include "runtime/lockstep.h"

namespace lockstep::text_lm {

/// Prints on rank 0, unless --json is given.
template <typename... Args>
void say(const Options& options, const World& world, fmt::format_string<Args...> format, Args&&... args) {
  if (world.rank() != 0 || options.json) return;
  fmt::print(format, std::forward<Args>(args)...);
  std::fflush(stdout);
}

std::int64_t tokens_of(const pack::Reader& pages);

class Progress {
 public:
  /// The training begins now.
  Progress(const Options& options, const pack::Reader& pages, World& world, torch::Device device);

  /// Adds a micro-batch of this rank, with the sum of its losses.
  void add(const torch::Tensor& loss_sum, const data::Batch& batch);

  /// Ends an optimizer step. All ranks call it, as the functions below.
  void end_step();

  /// Waits for all numbers, before a checkpoint and at the end. Throws Error if the loss is not finite.
  void settle();

  /// The state in a checkpoint, and the beginning of a training that continues from it.
  void add_to(Checkpointer& checkpointer);
  void resume();

  /// Whether the training ends before this epoch, or within it. The same on all ranks.
  bool over(std::uint64_t epoch) const { return options_.epochs ? epoch >= *options_.epochs : done() >= 1; }

  /// The number of finished steps.
  std::int64_t steps() const { return now_.steps; }

  /// The factor of the next step's learning rate: warm-up, then half a cosine down to a tenth.
  double learning_rate_factor() const;

  /// Prints the results, and returns them for --json.
  nlohmann::json report(const data::Loader& loader) const;

 private:
  struct Position {
    std::int64_t steps = 0;
    std::int64_t tokens = 0;
    double seconds = 0;  // of training, by rank 0's clock
  };

  double done() const;
  void collect();
  void read_loss();
  void print();

  const Options& options_;
  World& world_;
  std::uint64_t begin_ns_;
  double epoch_tokens_;
  Position now_;    // on all ranks, restarts included
  Position began_;  // the same when it was resumed
  Position line_;   // the same at the last line

  std::int64_t tokens_here_ = 0;  // of this rank in this step
  torch::Tensor sums_;            // the last step's tokens and the seconds, while `summing_` adds them
  WorkHandle summing_;

  torch::Tensor loss_here_;  // of this rank since it was read, on the device
  std::int64_t loss_tokens_here_ = 0;
  double loss_ = 0;  // per token of all ranks when it was read

  // How often each sample was trained on, to show that none is lost or repeated. Leave it out if there are many.
  torch::Tensor seen_here_;  // on this rank since settle()
  torch::Tensor seen_;       // on all ranks; undefined before the first settle()
};

}  // namespace lockstep::text_lm
