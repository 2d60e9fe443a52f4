// Many simulated rings: all nodes end, with all data or with a line, and the faults planted around the decisions are found.

#include <gtest/gtest.h>

#include <map>

#include "tests/simulation/ring_world.h"

namespace lockstep::simulation {
namespace {

WorldOptions options_of(std::uint64_t seed) {
  return {.nodes = 8 + static_cast<std::uint32_t>(seed % 57), .chunks = 16 + seed * 7 % 150, .seed = seed};
}

TEST(RingSimulation, EveryNodeEndsWithAllDataOrALine) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    const WorldEnd end = play(options_of(seed));
    EXPECT_EQ(end.problem, "") << "simulate_ring --seeds " << seed << " --explain";
    EXPECT_EQ(end.published_wrong, 0U);
  }
}

TEST(RingSimulation, QuietRingReadsTheSourceOnceAndSendsTheDataOnce) {
  for (const std::uint32_t nodes : {2U, 3U, 16U, 1024U}) {
    const WorldEnd end = play({.nodes = nodes, .chunks = 256, .faults = false});
    EXPECT_EQ(end.problem, "");
    EXPECT_EQ(end.complete, nodes);
    EXPECT_LE(end.sent_max_ratio, 1.0);
    EXPECT_DOUBLE_EQ(end.source_ratio, 1.0);
    const WorldEnd held = play({.nodes = nodes, .chunks = 256, .faults = false, .holders = {nodes / 2}});
    EXPECT_EQ(held.complete, nodes);
    EXPECT_DOUBLE_EQ(held.source_ratio, 0.0);
  }
}

// Node 5 of 8 dies in the middle: node 6 reads what it still lacks, and nobody else notices.
TEST(RingSimulation, OnlyTheSuccessorOfAKilledNodeReadsMore) {
  const WorldEnd quiet = play({.nodes = 8, .chunks = 256, .faults = false});
  const WorldEnd end = play({.nodes = 8, .chunks = 256, .faults = false, .killed = 5});
  EXPECT_EQ(end.problem, "");
  EXPECT_EQ(end.complete, 7U);
  EXPECT_GT(end.source_ratio, quiet.source_ratio);
  EXPECT_LT(end.source_ratio, 2.0);
}

TEST(RingSimulation, PlantedFaultsAreFound) {
  const std::map<std::string, Planted> faults{{"left dropped", Planted::left_dropped},
                                              {"freed early", Planted::freed_early},
                                              {"digest not checked", Planted::digest_not_checked},
                                              {"hand over lost", Planted::hand_over_lost},
                                              {"handed over, and read", Planted::handed_over_read},
                                              {"not asked again", Planted::not_asked_again},
                                              {"chunk lost", Planted::chunk_lost},
                                              {"loss ignored", Planted::loss_ignored},
                                              {"lacks ignored", Planted::lacks_ignored},
                                              {"piece lost", Planted::piece_lost},
                                              {"damage sent on", Planted::damage_sent_on},
                                              {"read twice", Planted::read_twice}};
  for (const auto& [name, fault] : faults) {
    bool found = false;
    for (std::uint64_t seed = 1; seed <= 300 && !found; ++seed) {
      WorldOptions options = options_of(seed);
      options.planted = fault;
      const WorldEnd end = play(options);
      found = !end.problem.empty() || end.published_wrong > 0;
    }
    EXPECT_TRUE(found) << name;
  }
}

}  // namespace
}  // namespace lockstep::simulation
