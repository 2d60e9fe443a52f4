// Synthetic data sets for the tests of mixtures, and the properties that every run must have.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/data/plan/order/random.h"
#include "runtime/data/plan/planner.h"
#include "tests/unit/runtime/data/plan/length_lists.h"
#include "tests/unit/runtime/data/plan/order/samples_of_block.h"
#include "tests/unit/runtime/data/plan/plan_run.h"

namespace lockstep::data {

// Synthetic data sets, one after the other, and a mixture of them.
struct MixtureWorld {
  std::vector<std::uint32_t> lengths;
  Mixture mixture;

  explicit MixtureWorld(unsigned seed, std::uint64_t steps = 60) {
    const auto add = [&](const std::string& name, const std::vector<std::uint32_t>& more) {
      lengths.insert(lengths.end(), more.begin(), more.end());
      mixture.parts.push_back({name, more.size()});
    };
    add("web", length_lists(700, 100, seed)[1].lengths);
    add("books", length_lists(90, 100, seed + 1)[0].lengths);
    add("tiny", {2});  // used hundreds of times in a block
    mixture.steps = steps;
    mixture.weights = {6, 3, 1};
  }

  std::size_t part_of(SampleId id) const {
    std::size_t part = 0;
    for (std::size_t end = mixture.parts[0].samples; sample_of(id) >= end; end += mixture.parts[part].samples)
      ++part;
    return part;
  }
  std::uint32_t longest() const { return *std::max_element(lengths.begin(), lengths.end()); }
};

// Expects that the used samples and the pending pieces are together the first samples of each part's
// endless stream.
inline void expect_stream_prefixes(const MixtureWorld& world, const PlanOptions& options,
                                   std::map<SampleId, int> uses, const MixturePlanner& planner,
                                   const std::string& what) {
  for (const SampleId id : planner.pending_pieces()) ++uses[id];
  std::map<SampleId, int> expected;  // an id is used again after 256 epochs
  std::size_t begin = 0;
  for (std::size_t part = 0; part < world.mixture.parts.size(); ++part) {
    const std::size_t samples = world.mixture.parts[part].samples;
    const std::uint64_t seed = Random(options.seed, part, 0).next();
    std::uint64_t remaining = planner.state().position.mixture->drawn[part];
    for (std::uint64_t epoch = 0; remaining > 0; ++epoch) {
      const EpochOrder order(samples, options.order, seed, epoch);
      for (std::size_t block = 0; block < order.blocks(); ++block) {
        for (const SampleId sample : samples_of_block(order, block)) {
          if (remaining == 0) break;
          --remaining;
          const std::uint32_t length = world.lengths[begin + sample];
          if (options.too_long == TooLong::skip && length > options.cap) continue;
          const SampleId id = (begin + sample) | (epoch & 0xffU) << kEpochShift;
          ++expected[id];
          if (options.too_long != TooLong::split) continue;
          for (SampleId piece = 1; piece * options.cap < length; ++piece)
            ++expected[id | piece << kPieceShift];
        }
      }
    }
    begin += samples;
  }
  for (const auto& [id, times] : expected) {
    ASSERT_EQ(uses[id], times) << what << ": sample " << sample_of(id) << " in epoch " << epoch_of(id)
                               << ", piece " << piece_of(id);
  }
  ASSERT_EQ(uses.size(), expected.size()) << what;
}

/// Stops a mixture after every `every`-th step and resumes it. With the same options it must plan the same
/// steps. It is also resumed on 1 to 6 ranks for some steps, and then on another number of ranks to the
/// end.
inline void expect_resumes(const MixtureWorld& world, const PlanOptions& options, std::uint64_t every) {
  const LengthsInMemory source(world.lengths, "data");
  TrainingRun whole;
  MixturePlanner planner(source, options, world.mixture);
  use(planner, kAllSteps, whole);
  ASSERT_EQ(whole.steps.size(), world.mixture.steps);
  expect_stream_prefixes(world, options, whole.uses, planner, "without a stop");
  for (std::uint64_t stop = 0; stop <= world.mixture.steps; stop += every) {
    const std::string stopped_at = fmt::format("stopped after {}", stop);
    TrainingRun first;
    MixturePlanner stopped(source, options, world.mixture);
    use(stopped, stop, first);
    ASSERT_EQ(first.state.steps, stop);
    TrainingRun same = first;
    MixturePlanner again(source, options, world.mixture, first.state);
    use(again, kAllSteps, same);
    ASSERT_EQ(same.steps, whole.steps) << stopped_at;
    ASSERT_EQ(same.state, whole.state) << stopped_at;
    for (int ranks = 1; ranks <= 6; ++ranks) {
      const std::string what = fmt::format("{}, on {} ranks", stopped_at, ranks);
      TrainingRun run = first;
      PlanOptions second = options;
      second.ranks = ranks;
      MixturePlanner resumed(source, second, world.mixture, run.state);
      use(resumed, 1 + stop % 3, run);
      PlanOptions third = second;
      third.ranks = 1 + (ranks + 1) % 6;
      third.accumulate = 3;
      third.step_stretch = 1;
      MixturePlanner last(source, third, world.mixture, run.state);
      use(last, kAllSteps, run);
      ASSERT_EQ(run.state.steps, world.mixture.steps) << what;
      expect_stream_prefixes(world, options, run.uses, last, what);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace lockstep::data
