#include "runtime/train/validation.h"

#include <cmath>

#include "common/error.h"
#include "runtime/ddp/collectives.h"

namespace lockstep {
namespace {

constexpr std::int64_t kIgnored = -100;  // PyTorch's ignore_index

}  // namespace

std::pair<std::int64_t, std::int64_t> share_of(const World& world, std::int64_t samples) {
  if (samples < 0) fail_usage("share_of: the number of samples is {}; it must not be negative", samples);
  const std::int64_t ranks = world.size();
  const std::int64_t rank = world.rank();
  const auto begin_of = [&](std::int64_t of) { return samples / ranks * of + std::min(of, samples % ranks); };
  return {begin_of(rank), begin_of(rank + 1)};
}

Validation::Validation(World& world, torch::nn::Module& module) : world_(world) {
  module.apply([this](torch::nn::Module& part) { training_before_.emplace_back(&part, part.is_training()); });
  module.eval();
  world_.timer().begin_evaluation();
}

Validation::~Validation() {
  world_.timer().end_evaluation();
  for (const auto& [part, training] : training_before_) part->train(training);
}

void Validation::add_sums(const std::vector<torch::Tensor>& sums) {
  std::vector<torch::Tensor> doubles;
  for (const auto& sum : sums)
    doubles.push_back(sum.detach().to(sums.front().device(), torch::kDouble).reshape({}));
  const torch::Tensor added = torch::stack(doubles);
  sums_ = sums_.defined() ? sums_ + added : added;
}

void Validation::add(const torch::Tensor& loss_sum, std::int64_t items) {
  if (items < 0) fail_usage("Validation: the number of items is {}; it must not be negative", items);
  const auto on_device = torch::dtype(torch::kDouble).device(loss_sum.device());  // a copy to it would wait
  const auto none = torch::zeros({}, on_device);
  add_sums({loss_sum, torch::full({}, static_cast<double>(items), on_device), none, none});
}

void Validation::add_classes(const torch::Tensor& logits, const torch::Tensor& targets) {
  if (logits.dim() != 2 || targets.dim() != 1 || logits.size(0) != targets.size(0)) {
    fail_usage("Validation: logits must be [N, classes] and targets [N], but they are [{}] and [{}]",
               fmt::join(logits.sizes().vec(), ", "), fmt::join(targets.sizes().vec(), ", "));
  }
  if (logits.size(0) == 0) return;
  const auto counts = targets.ne(kIgnored);
  const auto loss = torch::nn::functional::cross_entropy(
      logits, targets,
      torch::nn::functional::CrossEntropyFuncOptions().ignore_index(kIgnored).reduction(torch::kSum));
  const auto hits = logits.argmax(1).eq(targets).sum();
  const auto items = counts.sum();
  add_sums({loss, items, hits, items});
}

ValidationResult Validation::result() const {
  const auto all = sums_.defined() ? sums_.to(torch::kCPU, /*non_blocking=*/false, /*copy=*/true)
                                   : torch::zeros({4}, torch::kDouble);
  all_reduce(world_, all, ReduceOp::sum, "the sums of a validation");
  const double* sums = all.data_ptr<double>();
  if (sums[1] == 0)
    fail("Validation: no rank has added an item, so there is no mean loss; check the validation data");
  ValidationResult result;
  result.loss = sums[0] / sums[1];
  result.perplexity = std::exp(result.loss);
  if (sums[3] > 0) result.accuracy = sums[2] / sums[3];
  result.items = static_cast<std::int64_t>(sums[1]);
  return result;
}

}  // namespace lockstep
