// Measures a model on held-out data, on all ranks together and with each sample once. The mean loss, the perplexity and
// the accuracy are those of the whole data, however the samples are divided among the ranks. A rank may have no sample.
//
//   lockstep::Validation validation(world, *model);   // model->eval() and no gradients, until the end of the scope
//   const auto [begin, end] = lockstep::share_of(world, images.size(0));
//   for (auto i = begin; i < end; i += 64)
//     validation.add_classes(model(images.slice(0, i, std::min(i + 64, end))), labels.slice(…));
//   const auto result = validation.result();          // on all ranks
//
// Call the model itself, not DistributedDataParallel. With a loader, use data::Order::sequential, and skip its empty
// batches. The sums stay on the model's device until result(). The step timer counts the scope's time for no step.
//
// Threads: the training thread.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"

namespace lockstep {

struct ValidationResult {
  double loss = 0;                 ///< the mean over all items of all ranks
  double perplexity = 0;           ///< e to the power of the loss
  std::optional<double> accuracy;  ///< if add_classes() was called
  std::int64_t items = 0;          ///< tokens or samples that counted
};

/// The samples [begin, end) of this rank, if `samples` are divided among the ranks: each on one rank, and at
/// most one more on one rank than on another. begin == end for a rank without samples.
std::pair<std::int64_t, std::int64_t> share_of(const World& world, std::int64_t samples);

class [[nodiscard]] Validation {
 public:
  /// Switches the module to evaluation. Both must outlive this object.
  Validation(World& world, torch::nn::Module& module);
  /// Switches each part of the module back to what it was.
  ~Validation();
  Validation(const Validation&) = delete;
  Validation& operator=(const Validation&) = delete;

  /// Adds a loss of one element that is a sum over `items` tokens or samples.
  void add(const torch::Tensor& loss_sum, std::int64_t items);

  /// Adds the cross entropy and the hits of logits [N, classes] for targets (int64 [N]). A target of -100 does not
  /// count.
  void add_classes(const torch::Tensor& logits, const torch::Tensor& targets);

  /// Sums over the ranks. All ranks call it, also those that added nothing. Throws Error if no rank has an item.
  ValidationResult result() const;

 private:
  void add_sums(const std::vector<torch::Tensor>& sums);

  World& world_;
  torch::NoGradGuard no_gradients_;
  std::vector<std::pair<torch::nn::Module*, bool>> training_before_;  // parents first
  torch::Tensor sums_;  // double: loss, items, hits, items with hits or misses
};

}  // namespace lockstep
