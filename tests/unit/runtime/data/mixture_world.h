// Made-up data sets for the tests of mixtures, and what must hold of any run of them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/data/plan/mixture_planner.h"
#include "runtime/data/plan/random.h"
#include "tests/unit/runtime/data/length_lists.h"
#include "tests/unit/runtime/data/plan_uses.h"

namespace lockstep::data {

// Uses up to so many micro-batches and returns where that leaves the run. The state behind the last block
// says what was drawn and not used.
inline PlanState use(MixturePlanner& planner, std::uint64_t micro_batches, Seen& seen, std::uint64_t& used) {
  used = 0;
  PlannedBlock block;
  while (planner.next_block(block)) {
    for (std::uint64_t i = block.start.done; i < block.plan.micro_batches_per_rank(); ++i) {
      if (used == micro_batches) return through_text(planner.state_after(block, i));
      see(block.plan, i, seen);
      ++used;
    }
  }
  return through_text(block.start);
}

// Some made-up data sets, one behind the other.
struct World {
  std::vector<std::uint32_t> lengths;
  Mixture mixture;

  explicit World(unsigned seed, std::uint64_t steps = 60) {
    const auto add = [&](const std::string& name, const std::vector<std::uint32_t>& more) {
      lengths.insert(lengths.end(), more.begin(), more.end());
      mixture.parts.push_back({name, more.size()});
    };
    add("web", length_lists(700, 100, seed)[1].lengths);
    add("books", length_lists(90, 100, seed + 1)[0].lengths);
    add("tiny", {2});  // hundreds of times in a block
    mixture.steps = steps;
    mixture.ranges = {{.first_step = 0, .weights = {6, 3, 1}, .longest = 0}};
  }
};

// What was seen of each part, and the samples left over, are together a beginning of its endless run.
inline void expect_beginnings(const World& world, const PlanOptions& options, Seen seen, const PlanState& end,
                              const std::string& what) {
  for (const SampleId id : end.carried) ++seen[id];
  Seen expected;  // an id comes again after 256 epochs
  std::size_t begin = 0;
  for (std::size_t part = 0; part < world.mixture.parts.size(); ++part) {
    const std::size_t samples = world.mixture.parts[part].samples;
    const std::uint64_t seed = Random(options.seed, part, 0).next();
    std::uint64_t left = end.mixture->drawn[part];
    for (std::uint64_t epoch = 0; left > 0; ++epoch) {
      const EpochOrder order(samples, options.order, seed, epoch);
      for (std::size_t block = 0; block < order.blocks(); ++block) {
        for (const SampleId sample : order.block(block)) {
          if (left == 0) break;
          --left;
          const SampleId id = (begin + sample) | (epoch & 0xffU) << kEpochShift;
          ++expected[id];
          if (options.too_long != TooLong::split) continue;
          for (SampleId piece = 1; piece * options.cap < world.lengths[begin + sample]; ++piece) {
            ++expected[id | piece << kPieceShift];
          }
        }
      }
    }
    begin += samples;
  }
  for (const auto& [id, times] : expected) {
    ASSERT_EQ(seen[id], times) << what << ": sample " << sample_of(id) << " in epoch " << epoch_of(id)
                               << ", piece " << piece_of(id);
  }
  ASSERT_EQ(seen.size(), expected.size()) << what;
}

/// Stops a mixture of 25 steps after each `every`-th micro-batch, goes on with some more on 1 to 4 ranks, and
/// to the end on yet another number of them with another accumulation.
inline void expect_it_goes_on(const World& world, const PlanOptions& first, std::uint64_t every) {
  const LengthsInMemory source(world.lengths, "data");
  for (std::uint64_t stop = 0; stop <= 50; stop += every) {
    for (int ranks = 1; ranks <= 4; ++ranks) {
      const std::string what = fmt::format("stopped after {}, on {} ranks", stop, ranks);
      Seen seen;
      std::uint64_t used = 0;
      MixturePlanner planner(source, first, world.mixture);
      PlanState state = use(planner, stop, seen, used);
      PlanOptions second = first;
      second.ranks = ranks;
      MixturePlanner again(source, second, world.mixture, state);
      state = use(again, 1 + stop % 3, seen, used);
      PlanOptions third = second;
      third.ranks = 1 + (ranks + 1) % 4;
      third.accumulate = 3;
      MixturePlanner last(source, third, world.mixture, state);
      state = use(last, ~std::uint64_t{0}, seen, used);
      EXPECT_EQ(state.steps_before, 25U) << what;
      expect_beginnings(world, first, seen, state, what);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

}  // namespace lockstep::data
