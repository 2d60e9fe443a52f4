// A running mean of a loss or another value that stays on its device and is read every N steps, because reading a
// value of a GPU (item()) makes the program wait until all work before it is done.
//
//   lockstep::RunningMean mean(100);
//   …
//     mean.add(loss_sum, batch.loss_tokens);                      // each micro-batch
//     if (const auto loss = mean.end_step()) print(*loss);        // each optimizer step
//
// The mean is that of this rank; all_reduce() sums over the ranks.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>

#include "common/error.h"

namespace lockstep {

class RunningMean {
 public:
  /// Throws UsageError if steps is below 1.
  explicit RunningMean(std::int64_t steps) : every_(steps) {
    if (steps < 1) fail_usage("RunningMean: steps is {}; it must be at least 1", steps);
  }

  /// Adds a value of one element that is a sum over `count` items (tokens, samples). Does not wait for the device.
  void add(const torch::Tensor& sum, std::int64_t count = 1) {
    const torch::NoGradGuard no_grad;
    const torch::Tensor value = sum.detach().to(torch::kDouble).reshape({});
    sum_ = sum_.defined() ? sum_ + value : value.clone();
    count_ += count;
  }

  /// Every N-th call returns the mean since it was last returned, which waits for the device; the other calls
  /// return nothing. A mean of no items is NaN.
  std::optional<double> end_step() {
    if (++steps_ < every_) return std::nullopt;
    const double sum = sum_.defined() ? sum_.item<double>() : 0;
    const double mean = sum / static_cast<double>(count_);
    sum_ = torch::Tensor();
    count_ = steps_ = 0;
    return mean;
  }

 private:
  std::int64_t every_;
  std::int64_t steps_ = 0;
  torch::Tensor sum_;
  std::int64_t count_ = 0;
};

}  // namespace lockstep
