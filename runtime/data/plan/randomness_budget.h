// How far the steps' mean lengths may stray from those of random draws. Steps that stray less than the bound
// save up for one that strays more, so that outliers can meet in one step while the epoch as a whole stays
// random.
//
// Threads: a RandomnessBudget belongs to one thread at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "runtime/data/plan/item.h"

namespace lockstep::data {

class RandomnessBudget {
 public:
  /// `bound` is on the step-mean ratio: the spread of the steps' means over that of random draws from
  /// `items`. `saved` is what earlier steps of the same epoch left.
  RandomnessBudget(std::span<const Item> items, double bound, double saved) : bound_(bound), saved_(saved) {
    std::uint64_t sum = 0;
    double squares = 0;
    for (const Item& item : items) {
      sum += item.length;
      const auto length = static_cast<double>(item.length);
      squares += length * length;
    }
    if (items.empty()) return;
    const auto count = static_cast<double>(items.size());
    mean_ = static_cast<double>(sum) / count;
    mean_square_ = squares / count;
    variance_ = std::max(0.0, mean_square_ - mean_ * mean_);
    expected_ = mean_;
  }
  RandomnessBudget() = default;

  /// Of the steps to come.
  void lower_bound_to(double bound) { bound_ = bound; }

  /// What a step of so many samples adds, in squared tokens.
  double share(double samples) const { return bound_ * bound_ * variance_ / samples; }

  /// Of all samples.
  double mean() const { return mean_; }
  /// The mean length that a token sees: of lengths weighted by themselves.
  double mean_by_token() const { return mean_ > 0 ? mean_square_ / mean_ : 0; }

  /// What the samples that are left have at the mean. A step that strays with them is allowed: others would
  /// only have to stray more for it.
  void expect(double mean) { expected_ = mean; }

  /// Whether a step of `samples` samples and `tokens` tokens stays within what is left.
  bool allows(std::uint64_t tokens, std::size_t samples) const {
    const double mean = static_cast<double>(tokens) / static_cast<double>(samples);
    const Range range = allowed(samples);
    return mean >= range.least && mean <= range.most;
  }

  /// Whether a sample may join: the step then stays within what is left, or strays less than without it.
  bool allows_adding(std::uint32_t length, std::uint64_t tokens, std::size_t samples) const {
    return samples == 0 || allows(tokens + length, samples + 1) ||
           strays(tokens + length, samples + 1) <= strays(tokens, samples);
  }

  /// Whether a sample that joins brings the step nearer to what is expected of it.
  bool nears(std::uint32_t length, std::uint64_t tokens, std::size_t samples) const {
    const double before = static_cast<double>(tokens) / static_cast<double>(samples);
    const double after = static_cast<double>(tokens + length) / static_cast<double>(samples + 1);
    return std::abs(after - expected_) <= std::abs(before - expected_);
  }

  /// The mean nearest to that of such a step that would be allowed.
  double nearest_mean(std::uint64_t tokens, std::size_t samples) const {
    const Range range = allowed(samples);
    return std::max(
        1.0, static_cast<double>(tokens) / static_cast<double>(samples) > mean_ ? range.most : range.least);
  }

  /// What the steps so far have left, in squared tokens.
  double saved() const { return saved_; }

  /// Whether nothing is owed, but for rounding.
  bool kept() const { return saved_ >= -1e-9 * mean_ * mean_; }

  /// What is saved beside the mean of the steps so far, rather than that of all samples: what counts in the
  /// end. It is less strict where a rare step strays far, and what the rare step has is missing in all
  /// others.
  double saved_by_spread() const {
    return spread_.steps > 0 ? spread_.shares - spread_.squares + spread_.sum * spread_.sum / spread_.steps
                             : 0;
  }

  /// Books a step.
  void spend(std::uint64_t tokens, std::size_t samples) {
    if (samples == 0) return;
    saved_ += share(samples) - strays(tokens, samples);
    const double deviation = static_cast<double>(tokens) / static_cast<double>(samples) - mean_;
    spread_.steps += 1;
    spread_.sum += deviation;
    spread_.squares += deviation * deviation;
    spread_.shares += share(samples);
  }

 private:
  struct Range {
    double least;
    double most;
  };
  Range allowed(std::size_t samples) const {
    const double part = std::sqrt(share(samples));
    const double all = std::sqrt(std::max(0.0, saved_ + share(samples)));
    const double rounding = 1e-9 * mean_;
    return {std::min(mean_ - all, expected_ - part) - rounding,
            std::max(mean_ + all, expected_ + part) + rounding};
  }
  double strays(std::uint64_t tokens, std::size_t samples) const {
    const double deviation = static_cast<double>(tokens) / static_cast<double>(samples) - mean_;
    return deviation * deviation;
  }
  double share(std::size_t samples) const { return share(static_cast<double>(samples)); }

  double bound_ = 1;
  double mean_ = 0;
  double mean_square_ = 0;
  double variance_ = 0;
  double saved_ = 0;
  double expected_ = 0;
  // Over the steps so far.
  struct Spread {
    double steps = 0;
    double sum = 0;  // of their means, less mean_
    double squares = 0;
    double shares = 0;
  } spread_;
};

}  // namespace lockstep::data
