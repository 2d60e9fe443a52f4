// The rules that every plan must follow, checked in the simplest way.
#pragma once

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/data/plan/planner.h"

namespace lockstep::data {

/// The tokens that a plan uses of a sample or piece.
inline std::uint64_t tokens_of(SampleId id, const std::vector<std::uint32_t>& lengths,
                               const PlanOptions& options) {
  const std::uint64_t length = lengths.at(sample_of(id));
  const std::uint64_t begin = piece_of(id) * options.cap;
  EXPECT_LT(begin, length) << "sample " << sample_of(id) << " has no piece " << piece_of(id);
  return options.too_long == TooLong::refuse ? length : std::min(options.cap, length - begin);
}

/// The tokens of a micro-batch, with padding.
inline std::uint64_t memory_of(std::span<const SampleId> batch, const std::vector<std::uint32_t>& lengths,
                               const PlanOptions& options) {
  std::uint64_t sum = 0;
  std::uint64_t longest = 0;
  for (const SampleId id : batch) {
    sum += tokens_of(id, lengths, options);
    longest = std::max(longest, tokens_of(id, lengths, options));
  }
  if (!options.padded) return sum;
  while (longest % options.pad_multiple != 0 && longest < options.cap) ++longest;
  return longest * batch.size();
}

/// The right number of uses of each sample and piece in an epoch: 1.
inline std::map<SampleId, int> each_once(const std::vector<std::uint32_t>& lengths,
                                         const PlanOptions& options) {
  std::map<SampleId, int> uses;
  for (SampleId sample = 0; sample < lengths.size(); ++sample) {
    if (options.too_long == TooLong::skip && lengths[sample] > options.cap) continue;
    uses[sample] = 1;
    if (options.too_long != TooLong::split) continue;
    for (SampleId piece = 1; piece * options.cap < lengths[sample]; ++piece)
      uses[sample | piece << kPieceShift] = 1;
  }
  return uses;
}

/// The number of uses of each sample in the steps from `first` to `end` - 1.
inline std::map<SampleId, int> uses_of(const Plan& plan, std::size_t first, std::size_t end) {
  std::map<SampleId, int> uses;
  for (std::size_t step = first; step < end; ++step) {
    for (const SampleId id : plan.step_samples(step)) ++uses[id];
  }
  return uses;
}

/// Expects that every step has samples, that no micro-batch is over the cap, and that micro-batches are
/// empty only to make their numbers equal.
inline void expect_steps(const Plan& plan, const std::vector<std::uint32_t>& lengths,
                         const std::string& what) {
  const PlanOptions& options = plan.options();
  for (std::size_t step = 0; step < plan.steps(); ++step) {
    const std::string where = fmt::format("step {} of {}, {}", step, plan.steps(), what);
    std::size_t max_batches = 0;
    std::size_t max_filled = 0;
    std::size_t samples = 0;
    for (int rank = 0; rank < options.ranks; ++rank) {
      std::size_t filled = 0;
      for (std::size_t m = 0; m < plan.micro_batches(step, rank); ++m) {
        const auto batch = plan.micro_batch(step, rank, m);
        ASSERT_LE(memory_of(batch, lengths, options), options.cap) << where << ", rank " << rank;
        ASSERT_TRUE(!batch.empty() || filled == 0)
            << where << ", rank " << rank << ": an empty one is not first";
        if (!batch.empty()) ++filled;
        samples += batch.size();
      }
      max_filled = std::max(max_filled, filled);
      max_batches = std::max(max_batches, plan.micro_batches(step, rank));
      ASSERT_TRUE(options.equal_micro_batches || filled == plan.micro_batches(step, rank))
          << where << ", rank " << rank;
    }
    ASSERT_EQ(max_batches, max_filled) << where << ": no more than needed";
    for (int rank = 0; options.equal_micro_batches && rank < options.ranks; ++rank) {
      ASSERT_EQ(plan.micro_batches(step, rank), max_batches) << where << ", rank " << rank;
    }
    ASSERT_EQ(samples, plan.step_samples(step).size()) << where;
    ASSERT_GT(samples, 0U) << where;
  }
}

inline void expect_valid(const Plan& plan, const std::vector<std::uint32_t>& lengths,
                         const std::string& what) {
  expect_steps(plan, lengths, what);
  EXPECT_TRUE(uses_of(plan, 0, plan.steps()) == each_once(lengths, plan.options()))
      << what << ": a sample is not used exactly once";
}

/// A plan as nested lists: steps, ranks, micro-batches, samples.
using Nested = std::vector<std::vector<std::vector<std::vector<SampleId>>>>;
inline Nested nested(const Plan& plan, std::size_t first = 0) {
  Nested steps;
  for (std::size_t step = first; step < plan.steps(); ++step) {
    auto& ranks = steps.emplace_back();
    for (int rank = 0; rank < plan.options().ranks; ++rank) {
      auto& batches = ranks.emplace_back();
      for (std::size_t m = 0; m < plan.micro_batches(step, rank); ++m) {
        const auto batch = plan.micro_batch(step, rank, m);
        batches.emplace_back(batch.begin(), batch.end());
      }
    }
  }
  return steps;
}

inline Plan plan_of(const PlanOptions& options, std::size_t samples, const Nested& steps) {
  Plan plan(options, samples, "");
  for (const auto& step : steps) plan.append_step(step);
  return plan;
}

}  // namespace lockstep::data
