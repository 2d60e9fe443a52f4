#include "staging/rendezvous/chain_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace lockstep::transfer {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using States = std::map<std::uint32_t, std::string>;

const auto kNobodyIsLost = [](std::uint32_t) { return false; };

std::vector<ChainPart> parts_of(const States& states, std::uint32_t node) {
  return chain_parts_from(to_json(ChainDirectory(states).parts_of(node)));
}

TEST(ChainDirectory, NodesFormOneRingInTheirOrder) {
  const States states{{0, "nn"}, {2, "nh"}, {5, "nn"}};
  const auto parts = parts_of(states, 2);
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_THAT(parts[0].sources, ElementsAre(0, 1));
  EXPECT_THAT(parts[0].held, ElementsAre(false, true));
  EXPECT_EQ(parts[0].nodes, 3U);
  EXPECT_EQ(parts[0].place, 1U);
  EXPECT_FALSE(parts[0].lists);
  EXPECT_EQ(parts[0].predecessor->node, 0U);
  EXPECT_TRUE(parts_of(states, 0)[0].lists);
  EXPECT_EQ(parts_of(states, 0)[0].predecessor->node, 5U);
  EXPECT_EQ(parts_of(states, 0)[0].predecessor->place, 2U);
}

TEST(ChainDirectory, SourcesThatNobodyNeedsAreInNoChain) {
  EXPECT_THAT(parts_of({{0, "hh"}, {1, "hh"}}, 0), IsEmpty());
  EXPECT_THAT(parts_of({{0, "hhb"}, {1, "hnh"}}, 0).at(0).sources, ElementsAre(1));
}

TEST(ChainDirectory, NodesThatWaitForAnotherProcessAreLeftOutOfThatSourcesChain) {
  const States states{{0, "nn"}, {1, "bn"}, {2, "nn"}};
  const auto waiting = parts_of(states, 1);
  ASSERT_EQ(waiting.size(), 2U);
  EXPECT_FALSE(waiting[0].in_ring());
  EXPECT_EQ(waiting[0].predecessor->node, 0U) << "if the copy that it waits for never comes";
  EXPECT_TRUE(waiting[1].in_ring());
  EXPECT_THAT(waiting[1].sources, ElementsAre(1));
  const auto parts = parts_of(states, 2);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].predecessor->node, 0U) << "passes over the busy node";
  EXPECT_EQ(parts[1].predecessor->node, 1U);
}

TEST(ChainDirectory, ALoneNodeHasNoPredecessor) {
  EXPECT_FALSE(parts_of({{0, "b"}, {1, "n"}}, 1).at(0).predecessor);
}

TEST(ChainDirectory, TheNextPredecessorIsTheNearestThatIsNotLost) {
  const ChainDirectory directory({{0, "n"}, {1, "n"}, {2, "n"}, {3, "n"}});
  const auto lost = [](std::uint32_t node) { return node == 1 || node == 2; };
  const NextPredecessor next = next_predecessor_from(to_json(directory.next(0, 3, lost)));
  EXPECT_EQ(next.predecessor->node, 0U);
  EXPECT_FALSE(next.lists);
  const auto others = [](std::uint32_t node) { return node != 3; };
  EXPECT_FALSE(directory.next(0, 3, others).predecessor);
  EXPECT_TRUE(directory.next(0, 3, others).lists);
}

TEST(ChainDirectory, TheFirstNodeThatIsLeftMakesTheLists) {
  const ChainDirectory directory({{0, "n"}, {1, "n"}, {2, "n"}});
  const auto lost = [](std::uint32_t node) { return node == 0; };
  EXPECT_TRUE(directory.next(0, 1, lost).lists);
  EXPECT_FALSE(directory.next(0, 2, lost).lists);
}

TEST(ChainDirectory, SourcesWhoseHoldersAreAllLostAreNamed) {
  const ChainDirectory directory({{0, "hhnh"}, {1, "nhnn"}, {2, "nnnn"}});
  const auto lost = [](std::uint32_t node) { return node == 0; };
  EXPECT_THAT(next_predecessor_from(to_json(directory.next(0, 1, lost))).without_holder, ElementsAre(0, 3));
  EXPECT_THAT(directory.next(0, 1, kNobodyIsLost).without_holder, IsEmpty());
}

TEST(ChainDirectory, ANodesPartDoesNotGrowWithTheNumberOfNodes) {
  std::map<std::uint32_t, std::string> few, many;
  for (std::uint32_t node = 0; node < 1000; ++node) {
    std::string states(100, 'n');
    states[node % 100] = 'h';
    if (node < 10) few.emplace(node, states);
    many.emplace(node, states);
  }
  const auto bytes = [](const States& states) {
    return to_json(ChainDirectory(states).parts_of(5)).dump().size();
  };
  EXPECT_LT(bytes(many), bytes(few) + 16);
}

TEST(ChainDirectory, RefusesNodesWithDifferentSources) {
  EXPECT_THROW(ChainDirectory({{0, "nn"}, {1, "n"}}), Error);
}

}  // namespace
}  // namespace lockstep::transfer
