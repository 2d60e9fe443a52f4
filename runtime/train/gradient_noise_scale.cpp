#include "runtime/train/gradient_noise_scale.h"

#include <array>
#include <cmath>

#include "common/error.h"
#include "runtime/archive.h"

namespace lockstep {
namespace {

torch::Tensor squared_norm(const torch::Tensor& gradients) {
  return at::linalg_vector_norm(gradients.to(torch::kFloat), 2).to(torch::kDouble).square();
}

}  // namespace

GradientNoiseScale::GradientNoiseScale(World& world, double decay) : world_(world), decay_(decay) {
  if (!(decay >= 0 && decay < 1))
    fail_usage("GradientNoiseScale: decay is {}; it must be at least 0 and below 1", decay);
  if (world.size() < 2)
    fail_usage("GradientNoiseScale: the job has one rank; it compares the gradients of at least two");
}

CommFuture GradientNoiseScale::start(GradBucket& bucket, comm::Communicator& communicator) {
  const torch::NoGradGuard no_grad;
  local_.push_back(squared_norm(bucket.buffer()));
  return {{communicator.all_reduce(bucket.memory(), "gradients", {.op = comm::ReduceOp::average})},
          [this, buffer = bucket.buffer()]() -> CommFuture {
            const torch::NoGradGuard no_grad_after;
            global_.push_back(squared_norm(buffer));
            return {};
          }};
}

std::string GradientNoiseScale::refuses_join() const {
  return "GradientNoiseScale compares all ranks in each step; average by count and call skip(), or train without it";
}

void GradientNoiseScale::gradients_scaled(double factor) {
  scale_ *= factor;
  noise_ *= factor * factor;
  signal_ *= factor * factor;
}

void GradientNoiseScale::save(torch::serialize::OutputArchive& archive) const {
  archive.write("noise", noise_ / (scale_ * scale_));
  archive.write("signal", signal_ / (scale_ * scale_));
  archive.write("known", known_);
}

void GradientNoiseScale::load(torch::serialize::InputArchive& archive) {
  noise_ = value_in(archive, "noise").toDouble() * scale_ * scale_;
  signal_ = value_in(archive, "signal").toDouble() * scale_ * scale_;
  known_ = value_in(archive, "known").toBool();
}

double GradientNoiseScale::take(std::vector<torch::Tensor>& squares) const {
  if (squares.empty())
    fail_usage("GradientNoiseScale: end_step() was called without a synchronised backward before it");
  const double sum = torch::stack(squares).sum().item<double>();
  squares.clear();
  return sum;
}

// For a gradient of B tokens, E|g|^2 = |G|^2 + noise / B. Each rank's own gradient gives one such equation, and the
// sum over the ranks another.
void GradientNoiseScale::end_step(std::int64_t tokens) {
  if (tokens < 0)
    fail_usage("GradientNoiseScale: the number of tokens is {}; it must not be negative", tokens);
  const auto count = static_cast<double>(tokens);
  const double own = take(local_);
  const double mean = take(global_);
  // Of the ranks with data: the squares of their mean gradients, 1 / tokens, tokens, their number.
  std::array<double, 4> sums{};
  if (tokens > 0) sums = {by_count_ ? own / (count * count) : own, 1 / count, count, 1};
  world_.communicator()
      .all_reduce({sums.data(), sums.size(), comm::DataType::f64}, "gradient noise scale")
      ->wait();
  const auto [squares, inverses, all_tokens, ranks] = sums;
  if (ranks < 2) return;
  const double size = world_.size();
  // The bucket has the mean over all ranks, also over those without data.
  const double share = by_count_ ? size / all_tokens : size / ranks;
  const double together = mean * share * share;
  // The noise in the sum over the ranks, as a part of one token's. Over ranks each rank counts as much as another.
  const double of_all = by_count_ ? 1 / all_tokens : inverses / (ranks * ranks);
  const double noise = (squares / ranks - together) / (inverses / ranks - of_all);
  const double signal = together - noise * of_all;
  if (!std::isfinite(noise) || !std::isfinite(signal)) return;
  noise_ = known_ ? decay_ * noise_ + (1 - decay_) * noise : noise;
  signal_ = known_ ? decay_ * signal_ + (1 - decay_) * signal : signal;
  known_ = true;
}

std::optional<double> GradientNoiseScale::value() const {
  if (!known_ || !(signal_ > 0) || !(noise_ >= 0)) return std::nullopt;
  return noise_ / signal_;
}

}  // namespace lockstep
