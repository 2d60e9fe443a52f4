#include "staging/rendezvous/rendezvous_messages.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "common/error.h"
#include "staging/rendezvous/node_names.h"

namespace lockstep::transfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(DescribeTimes, NamesTheSlowestNode) {
  EXPECT_EQ(describe_times({{0.5, "n1"}, {3.2, "n2"}, {0.4, "n3"}}),
            "400 ms to 3.20 s, median 500 ms; the slowest is n2");
  EXPECT_EQ(describe_times({{0.5, "n1"}}), "");
}

TEST(RendezvousOutcome, ExpandsNodeListsOfSlurm) {
  EXPECT_THAT(expand_node_list("n1"), ElementsAre("n1"));
  EXPECT_THAT(expand_node_list("n[1-3,7],login"), ElementsAre("n1", "n2", "n3", "n7", "login"));
  EXPECT_THAT(expand_node_list("rack[08-10]"), ElementsAre("rack08", "rack09", "rack10"));
  EXPECT_THAT(expand_node_list(""), IsEmpty());
  EXPECT_THAT(expand_node_list("n[1-"), IsEmpty());
  EXPECT_THAT(expand_node_list("n[x-2]"), IsEmpty());
  EXPECT_THAT(expand_node_list("n[5-2]"), IsEmpty());
  EXPECT_EQ(expand_node_list("n[1-99999999999]").size(), 1U << 20U) << "no list eats all memory";
}

TEST(RendezvousOutcome, ManyNodesAndReasonsGiveOneReadableLine) {
  std::map<std::string, std::string> all;
  for (int i = 0; i < 100; ++i) all[fmt::format("n{:03}", i)] = "/x: no";
  EXPECT_EQ(describe(all), "n000, n001, n002, n003, n004, n005, n006, n007, ... (100 nodes): /x: no");
  for (auto& [name, why] : all) why = name;
  EXPECT_THAT(describe(all), HasSubstr("n000: n000; n001: n001; n002: n002; and 97 more reasons"));
}

TEST(RendezvousOutcome, ImpossibleMessagesAreRefused) {
  Hello own;
  own.job = 7;
  own.step = "0";
  own.node = "n2";
  own.node_id = 1;
  own.nodes = 2;
  EXPECT_EQ(Hello::from_text(own.to_text()).node, "n2");
  for (const char* text : {"", "[]", "{}", "null", "{\"job\":1}", "{\"good\":1}"}) {
    EXPECT_THROW(Hello::from_text(text), Error) << text;
    EXPECT_THROW(Verdict::from_text(text), Error) << text;
  }
  own.node_id = 2;
  EXPECT_THROW(Hello::from_text(own.to_text()), Error);
  own.node_id = 0;
  own.nodes = 0;
  EXPECT_THROW(Hello::from_text(own.to_text()), Error);
}

}  // namespace
}  // namespace lockstep::transfer
