#include "staging/rendezvous/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/error.h"
#include "common/sockets.h"
#include "staging/rendezvous/secure_connection.h"
#include "tests/unit/message_of.h"
#include "tests/unit/staging/rendezvous/rendezvous_world.h"

namespace lockstep::transfer {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A node that connects, introduces itself, perhaps reports its outcome, and then sends nothing more, as a
// stopped process does.
std::unique_ptr<SecureConnection> silent_node(const Srun& srun, const Hello& who,
                                              const std::optional<Verdict>& outcome = {}) {
  auto node = std::make_unique<SecureConnection>(connect_to({"127.0.0.1"}, srun.port(), milliseconds(1000)),
                                                 kRendezvousService, kKey);
  node->connect(who.client_name(), kLong);
  node->send_line(who.to_text());
  if (outcome) node->send_line(outcome->to_text());
  return node;
}

TEST(Rendezvous, AllNodesLearnThatStagingSucceeded) {
  Srun srun;
  std::vector<std::future<Verdict>> nodes;
  for (std::uint32_t id = 0; id < 16; ++id) nodes.push_back(node(srun, hello(id, 16), {true, ""}));
  for (auto& one : nodes) EXPECT_TRUE(one.get().good);
  EXPECT_THAT(srun.lines(), IsEmpty());
}

// The process's time on CPUs.
double cpu_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(Rendezvous, WithoutFreeDescriptorsSaysSoOnceAndGoesOnLater) {
  Srun srun;
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  // One descriptor is free: for the node's end of the connection, not for the server's.
  const int free = UniqueFd(::dup(STDERR_FILENO)).get();
  const rlimit one{static_cast<rlim_t>(free + 1), before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &one), 0);
  const UniqueFd node = connect_to({"127.0.0.1"}, srun.port(), milliseconds(1000));
  send_all(node, "not TLS", "srun");
  pollfd answered{node.get(), POLLIN, 0};
  const double cpu = cpu_seconds();
  const std::uint64_t begin = monotonic_ns();
  EXPECT_EQ(::poll(&answered, 1, 500), 0) << "was accepted";
  EXPECT_LT(cpu_seconds() - cpu, 0.5 * seconds_between(begin, monotonic_ns())) << "does not wait, but spins";
  EXPECT_THAT(srun.lines(), ElementsAre(HasSubstr("no file descriptor is left: raise the limit")));
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(::poll(&answered, 1, 10'000), 1) << "was not accepted";
}

TEST(Rendezvous, NoNodeGetsAVerdictBeforeTheLastOneHasReported) {
  Srun srun;
  std::future<Verdict> first = node(srun, hello(0, 2), {true, ""});
  Rendezvous second(srun.address(), hello(1, 2), kIgnore);
  EXPECT_EQ(first.wait_for(milliseconds(100)), std::future_status::timeout);
  EXPECT_TRUE(second.agree({true, ""}).good);
  EXPECT_TRUE(first.get().good);
}

TEST(Rendezvous, OneFailureFailsAllWithOneLineThatNamesTheNode) {
  Srun srun;
  std::future<Verdict> first = node(srun, hello(0, 3), {true, ""});
  std::future<Verdict> second = node(srun, hello(1, 3), {false, "/data/x is not packed"});
  std::future<Verdict> third = node(srun, hello(2, 3), {true, ""});
  for (auto* one : {&first, &second, &third}) {
    const Verdict verdict = one->get();
    EXPECT_FALSE(verdict.good);
    EXPECT_EQ(verdict.why, "n2: /data/x is not packed");
  }
  EXPECT_THAT(srun.lines(), ElementsAre("n2: /data/x is not packed"));
}

TEST(Rendezvous, NodesThatFailForTheSameReasonShareTheLine) {
  Srun srun;
  std::vector<std::future<Verdict>> nodes;
  for (std::uint32_t id = 0; id < 3; ++id) nodes.push_back(node(srun, hello(id, 3), {false, "/x: no"}));
  for (auto& one : nodes) EXPECT_FALSE(one.get().good);
  EXPECT_THAT(srun.lines(), ElementsAre("n1, n2, n3: /x: no"));
}

TEST(Rendezvous, AFailureElsewhereStopsANodeThatIsStillStaging) {
  Srun srun;
  std::promise<std::string> stopped;
  const Rendezvous busy(srun.address(), hello(0, 2),
                        [&](const std::string& lost) { stopped.set_value(lost); });
  const std::future<Verdict> other = node(srun, hello(1, 2), {false, "/x: no"});
  EXPECT_EQ(stopped.get_future().get(), "");
}

TEST(Rendezvous, ANodeThatDisconnectsIsNamed) {
  Srun srun;
  std::future<Verdict> first = node(srun, hello(0, 2), {true, ""});
  { const Rendezvous dies(srun.address(), hello(1, 2), kIgnore); }
  EXPECT_FALSE(first.get().good);
  EXPECT_THAT(srun.lines(), ElementsAre("n2: disconnected while it was staging"));
}

TEST(Rendezvous, TheFirstNodeLearnsTheTimesOfAll) {
  Srun srun;
  std::future<Verdict> first = node(srun, hello(0, 2), {true, "", false, 1.0});
  EXPECT_EQ(node(srun, hello(1, 2), {true, "", false, 2.0}).get().times, "");
  EXPECT_EQ(first.get().times, "1.00 s to 2.00 s, median 2.00 s; the slowest is n2");
}

TEST(Rendezvous, ANodeThatDisconnectedMayComeBackAndReportItsOutcome) {
  for (const bool good : {true, false}) {
    Srun srun(kLong, kLong);
    // Killed after it had its data, and before the other node has its data.
    { const auto killed = silent_node(srun, hello(1, 2), Verdict{true, ""}); }
    std::future<Verdict> back = node(srun, hello(1, 2), {good, good ? "" : "killed"});
    EXPECT_EQ(node(srun, hello(0, 2), {true, ""}).get().good, good);
    EXPECT_EQ(back.get().good, good);
    EXPECT_THAT(srun.lines(), testing::ElementsAreArray(good ? std::vector<std::string>{}
                                                             : std::vector<std::string>{"n2: killed"}));
  }
}

TEST(Rendezvous, NodesThatDisconnectedTogetherAreNamedTogether) {
  Srun srun(kLong, kLong);
  for (const std::uint32_t id : {0U, 1U}) const auto killed = silent_node(srun, hello(id, 2));
  std::future<Verdict> first = node(srun, hello(0, 2), {false, "killed"});
  EXPECT_EQ(first.wait_for(milliseconds(200)), std::future_status::timeout) << "the other may come back";
  Rendezvous second(srun.address(), hello(1, 2), kIgnore);
  EXPECT_EQ(first.wait_for(milliseconds(200)), std::future_status::timeout)
      << "it is back, and has not reported";
  EXPECT_FALSE(second.agree({false, "killed"}).good);
  EXPECT_FALSE(first.get().good);
  EXPECT_THAT(srun.lines(), ElementsAre("n1, n2: killed"));
}

TEST(Rendezvous, ANodeThatComesBackAfterTheVerdictGetsTheVerdict) {
  Srun srun;
  auto killed = silent_node(srun, hello(1, 2), Verdict{true, ""});
  EXPECT_TRUE(node(srun, hello(0, 2), {true, ""}).get().good);
  killed.reset();
  EXPECT_TRUE(node(srun, hello(1, 2), {false, "killed"}).get().good);
  EXPECT_THAT(srun.lines(), IsEmpty());
}

TEST(Rendezvous, ACancelledStepPrintsNothing) {
  Srun srun(kLong, kLong);
  std::promise<std::string> stopped;
  Rendezvous first(srun.address(), hello(0, 2), [&](const std::string& lost) { stopped.set_value(lost); });
  { const Rendezvous dies(srun.address(), hello(1, 2), kIgnore); }
  srun.end();
  EXPECT_THAT(stopped.get_future().get(), HasSubstr("srun's rendezvous"));
  EXPECT_THAT(srun.lines(), IsEmpty());
}

TEST(Rendezvous, ANodeThatNeverComesIsNamedAfterTheWait) {
  Srun srun(milliseconds(100));
  std::vector<std::future<Verdict>> nodes;
  for (const std::uint32_t id : {0U, 3U}) nodes.push_back(node(srun, hello(id, 4), {true, ""}));
  for (auto& one : nodes) EXPECT_FALSE(one.get().good);
  ASSERT_EQ(srun.lines().size(), 1U);
  EXPECT_THAT(srun.lines().front(), HasSubstr("n2, n3: did not reach srun within"));
}

TEST(Rendezvous, ALateNodeGetsTheVerdict) {
  Srun srun(milliseconds(50));
  EXPECT_FALSE(node(srun, hello(0, 2), {true, ""}).get().good);
  EXPECT_FALSE(node(srun, hello(1, 2), {true, ""}).get().good);
  EXPECT_EQ(srun.lines().size(), 1U);
}

TEST(Rendezvous, ANodeWithAWrongKeyIsIgnored) {
  Srun srun;
  RendezvousAddress wrong = srun.address();
  wrong.key = "another";
  EXPECT_THROW(Rendezvous(wrong, hello(0, 2), kIgnore).agree({true, ""}), Error);
  expect_two_nodes_agree(srun);
}

TEST(Rendezvous, ANodeThatSaysThatItIsAnotherOneIsRefused) {
  Srun srun;
  SecureConnection liar(connect_to({"127.0.0.1"}, srun.port(), milliseconds(1000)), kRendezvousService, kKey);
  liar.connect(hello(0, 2).client_name(), kLong);
  liar.send_line(hello(1, 2).to_text());
  EXPECT_THROW(liar.receive_line(1000, kLong), PeerLost);
  expect_two_nodes_agree(srun);
}

TEST(Rendezvous, UnauthenticatedConnectionsDoNotDisturb) {
  Srun srun;
  std::vector<UniqueFd> connections;
  for (const std::string& text :
       {std::string(), std::string("GET / HTTP/1.1\r\n\r\n"), std::string(1U << 20U, 'x'),
        std::string("lockstep-rendezvous 2 00\n"), std::string(3, '\0'), std::string("\n\n")}) {
    connections.push_back(connect_to({"127.0.0.1"}, srun.port(), milliseconds(1000)));
    [[maybe_unused]] const ssize_t put =
        ::send(connections.back().get(), text.data(), text.size(), MSG_NOSIGNAL);
  }
  expect_two_nodes_agree(srun);
}

TEST(Rendezvous, ASecondProcessCannotTakeThePlaceOfANodeThatIsConnected) {
  Srun srun;
  Rendezvous first(srun.address(), hello(0, 2), kIgnore);
  std::future<Verdict> second = node(srun, hello(1, 2), {true, ""});
  EXPECT_EQ(second.wait_for(milliseconds(100)), std::future_status::timeout);
  EXPECT_THROW(Rendezvous(srun.address(), hello(1, 2), kIgnore).agree({false, "lie"}), Error);
  EXPECT_TRUE(first.agree({true, ""}).good);
  EXPECT_TRUE(second.get().good);
}

// The first connection may be lost although srun has not noticed it.
TEST(Rendezvous, ANodeThatConnectsAgainAndSaysSoReplacesItsFirstConnection) {
  Srun srun;
  std::future<Verdict> first = node(srun, hello(0, 2), {true, ""});
  const auto lost = silent_node(srun, hello(1, 2));
  Hello again = hello(1, 2);
  again.replaces_process = true;
  EXPECT_TRUE(Rendezvous(srun.address(), again, kIgnore).agree({true, ""}).good);
  EXPECT_TRUE(first.get().good);
}

TEST(Rendezvous, TheErrorNamesAnAddressWhereNothingListens) {
  int port = 0;
  { const UniqueFd closed = bound_socket(port); }
  const RendezvousAddress address{port, {"127.0.0.1", "no.such.host.invalid"}, kKey};
  EXPECT_THAT(message_of([&] { Rendezvous(address, hello(0, 2), kIgnore); }),
              testing::AllOf(HasSubstr("127.0.0.1: Connection refused"), HasSubstr("no.such.host.invalid")));
}

TEST(Rendezvous, AServerThatDoesNotAnswerIsGivenUp) {
  int port = 0;
  const UniqueFd silent = bound_socket(port);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  RendezvousAddress address{port, {"127.0.0.1"}, kKey};
  address.handshake_timeout = milliseconds(100);
  EXPECT_THAT(message_of([&] { Rendezvous(address, hello(0, 2), kIgnore); }), HasSubstr("did not answer"));
}

TEST(Rendezvous, AStoppedNodeIsNamedWhileOthersGoOn) {
  Srun srun(kLong, milliseconds(50), milliseconds(4000));
  const auto stopped = silent_node(srun, hello(1, 2));
  std::future<Verdict> first = node(srun, hello(0, 2), {true, ""});
  EXPECT_FALSE(first.get().good);
  ASSERT_EQ(srun.lines().size(), 1U);
  EXPECT_THAT(srun.lines().front(), HasSubstr("n2: its staging process stopped responding"));
}

TEST(Rendezvous, ARoundDoesNotWaitForANodeThatStoppedAfterTheVerdict) {
  Srun srun(kLong, milliseconds(50), milliseconds(4000));
  const auto stopped = silent_node(srun, hello(1, 2), Verdict{true, "", true});
  Rendezvous first(srun.address(), hello(0, 2), kIgnore);
  EXPECT_TRUE(first.agree({true, "", true}).good);
  EXPECT_EQ(first.gather("later", "here").dump(), R"({"0":"here","1":null})");
}

TEST(Rendezvous, ARoundEndsIfSrunIsLostAfterTheVerdict) {
  Srun srun;
  Rendezvous first(srun.address(), hello(0, 2), kIgnore);
  Rendezvous second(srun.address(), hello(1, 2), kIgnore);
  std::future<Verdict> other = std::async([&] { return second.agree({true, "", true}); });
  EXPECT_TRUE(first.agree({true, "", true}).good);
  EXPECT_TRUE(other.get().good);
  std::future<nlohmann::json> round = std::async([&] { return first.gather("later", "here"); });
  srun.end();
  EXPECT_THROW(round.get(), Error);
}

TEST(Rendezvous, AStepThatIsSuspendedOnAllNodesIsLeftAlone) {
  Srun srun(kLong, milliseconds(50), milliseconds(400));
  const auto first = silent_node(srun, hello(0, 2));
  const auto second = silent_node(srun, hello(1, 2));
  std::this_thread::sleep_for(milliseconds(1000));
  EXPECT_THAT(srun.lines(), IsEmpty());
}

TEST(Rendezvous, ARoundSendsTheDataOfAllNodesToAllNodes) {
  Srun srun;
  std::vector<std::future<nlohmann::json>> nodes;
  for (std::uint32_t id = 0; id < 5; ++id) {
    nodes.push_back(std::async(std::launch::async, [&srun, id] {
      Rendezvous one(srun.address(), hello(id, 5), kIgnore);
      nlohmann::json first = one.gather("first", id * 10);
      const nlohmann::json second = one.gather("second", std::string(20'000, 'x'));
      EXPECT_EQ(second.size(), 5U);
      EXPECT_TRUE(one.agree({true, ""}).good);
      return first;
    }));
  }
  for (auto& one : nodes) EXPECT_EQ(one.get().dump(), R"({"0":0,"1":10,"2":20,"3":30,"4":40})");
}

TEST(Rendezvous, TheProgressOfAllNodesIsOneLineNowAndThen) {
  constexpr std::uint32_t kNodes = 64;
  Srun srun;
  std::vector<std::unique_ptr<Rendezvous>> nodes;
  for (std::uint32_t id = 0; id < kNodes; ++id)
    nodes.push_back(std::make_unique<Rendezvous>(srun.address(), hello(id, kNodes), kIgnore));
  const auto tell = [&](std::uint64_t done) {
    for (std::uint32_t id = 0; id < kNodes; ++id)
      nodes[id]->tell_progress({"pack", id + 1 < kNodes ? done : done - 1, 100, 10});
  };
  const auto line = [&](std::size_t count) {
    const std::uint64_t begin = monotonic_ns();
    while (srun.progress().size() < count && seconds_between(begin, monotonic_ns()) < 30)
      std::this_thread::yield();
    const std::vector<std::string> lines = srun.progress();
    return lines.size() == count ? lines.back() : fmt::format("{} lines", lines.size());
  };
  tell(40);
  EXPECT_THAT(line(1), HasSubstr("staging pack on "));
  const std::uint64_t said = monotonic_ns();
  for (const std::uint64_t done : {42U, 44U, 46U, 48U, 50U}) tell(done);
  EXPECT_EQ(line(2),
            "staging pack on 64 nodes: 49 % of 6.25 KiB, 319 B/s, 10.0 s left; the slowest is n64 (49 %)");
  EXPECT_GT(seconds_between(said, monotonic_ns()), 1.5) << "one every two seconds";
  // A node that has left has all.
  for (std::uint32_t id = 1; id < kNodes; ++id) nodes[id]->leave();
  nodes[0]->tell_progress({"pack", 70, 100, 10});
  EXPECT_THAT(line(3), AllOf(HasSubstr("99 % of 6.25 KiB"), HasSubstr("the slowest is n1 (70 %)")));
}

TEST(Rendezvous, ARoundWaitsOnlyForFinishedNodesThatStay) {
  Srun srun;
  Rendezvous first(srun.address(), hello(0, 3), kIgnore);
  std::future<Verdict> left = node(srun, hello(1, 3), {true, ""});
  std::future<nlohmann::json> stays = std::async(std::launch::async, [&srun] {
    Rendezvous one(srun.address(), hello(2, 3), kIgnore);
    EXPECT_TRUE(one.agree({true, "", true}).good);
    return one.gather("later", "here");
  });
  EXPECT_TRUE(first.agree({true, "", true}).good);
  EXPECT_EQ(first.gather("later", "too").dump(), R"({"0":"too","1":null,"2":"here"})");
  EXPECT_EQ(stays.get().at("0"), "too");
  EXPECT_TRUE(left.get().good);
}

/// Three nodes of a step that take part in the rounds of a ring.
class RendezvousRing : public testing::Test {
 protected:
  RendezvousRing() {
    for (std::uint32_t id = 0; id < 3; ++id) {
      nodes_.push_back(std::make_unique<Rendezvous>(srun_.address(), hello(id, 3), kIgnore));
      nodes_[id]->set_address({{"name", fmt::format("n{}", id + 1)},
                               {"hosts", std::vector<std::string>{"127.0.0.1"}},
                               {"port", 1000 + id}});
    }
  }
  /// Calls a function on all nodes at once. Returns its results in the order of the nodes.
  template <typename Call>
  auto on_all(const Call& call) {
    using Result = decltype(call(*nodes_[0], std::size_t{0}));
    std::vector<std::future<Result>> calls;
    for (std::size_t id = 0; id < nodes_.size(); ++id)
      calls.push_back(std::async(std::launch::async, [&, id] { return call(*nodes_[id], id); }));
    std::vector<Result> results;
    for (auto& one : calls) results.push_back(one.get());
    return results;
  }
  std::vector<RingPart> states(const std::vector<std::string>& states) {
    return on_all([&](Rendezvous& node, std::size_t id) { return node.states(1, states[id]); });
  }

  Srun srun_{kLong, kLong};
  std::vector<std::unique_ptr<Rendezvous>> nodes_;
};

TEST_F(RendezvousRing, EachNodeLearnsItsPlaceItsPredecessorAndWhatBecomesOfEachSource) {
  const std::vector<RingPart> parts = states({"nnbhn", "nhhhs", "nnbhs"});
  for (std::uint32_t id = 0; id < 3; ++id) {
    EXPECT_EQ(parts[id].nodes, 3U);
    EXPECT_EQ(parts[id].place, id);
    EXPECT_EQ(parts[id].predecessor.node, (id + 2) % 3);
    EXPECT_EQ(parts[id].predecessor.port, static_cast<int>(1000 + (id + 2) % 3));
    EXPECT_THAT(parts[id].predecessor.hosts, ElementsAre("127.0.0.1"));
    EXPECT_THAT(parts[id].sources, ElementsAre(SourcePart::read, SourcePart::held, SourcePart::busy,
                                               SourcePart::none, SourcePart::unsure));
  }
}

TEST_F(RendezvousRing, NodesWithOtherSourcesFailWithALine) {
  const auto problems = on_all([](Rendezvous& node, std::size_t id) {
    return message_of([&] { node.states(1, id == 1 ? "nn" : "n"); });
  });
  for (const std::string& problem : problems) EXPECT_THAT(problem, HasSubstr("different sources"));
}

TEST_F(RendezvousRing, ContentsDifferOnlyIfTwoNodesGotOtherBytes) {
  const auto contents = [&](std::size_t number, const std::vector<std::string>& digests, bool lacks) {
    return on_all([&](Rendezvous& node, std::size_t id) {
      return node.contents(number, digests[id], lacks && id == 2);
    });
  };
  for (const Contents& same : contents(1, {"a", "", "a"}, true)) {
    EXPECT_TRUE(same.equal);
    EXPECT_TRUE(same.again);
  }
  for (const Contents& other : contents(2, {"a", "", "b"}, false)) {
    EXPECT_FALSE(other.equal);
    EXPECT_FALSE(other.again);
    EXPECT_FALSE(other.lost);
  }
}

TEST_F(RendezvousRing, OnlyTheSuccessorLearnsThatANodeHasLeft) {
  states({"n", "n", "n"});
  EXPECT_FALSE(nodes_[0]->has_left(2));
  nodes_[2].reset();
  while (!nodes_[0]->has_left(2)) std::this_thread::yield();
  EXPECT_FALSE(nodes_[1]->has_left(2));
  nodes_.pop_back();
  const auto contents = [](Rendezvous& node, std::size_t) { return node.contents(1, "a", false); };
  for (const Contents& all : on_all(contents))
    EXPECT_TRUE(all.lost) << "when its copy is complete, each node must know";
}

TEST_F(RendezvousRing, NodesReadWhatOnlyANodeThatHasLeftHad) {
  const std::uint64_t before = nodes_[2]->bytes();
  std::future<std::string> holder =
      std::async(std::launch::async, [&] { return message_of([&] { nodes_[2]->states(1, "h"); }); });
  while (nodes_[2]->bytes() == before) std::this_thread::yield();
  nodes_[2]->leave();
  EXPECT_THAT(holder.get(), Not(IsEmpty()));
  nodes_.pop_back();
  for (const RingPart& part : states({"n", "n"})) {
    EXPECT_EQ(part.nodes, 2U);
    EXPECT_THAT(part.sources, ElementsAre(SourcePart::read));
  }
}

TEST(Rendezvous, ComponentsOfAStepOrOfAHeterogeneousJobAgreeSeparately) {
  Srun srun;
  std::future<Verdict> of_other_job = node(srun, hello(0, 1, 8), {false, "/x: no"});
  Hello other = hello(0, 1);
  other.node_list = "m1";
  Hello third = hello(0, 1);
  third.component = "2";
  std::future<Verdict> bad = node(srun, other, {false, "/x: no"});
  std::future<Verdict> good = node(srun, hello(0, 1), {true, ""});
  std::future<Verdict> also = node(srun, third, {true, ""});
  EXPECT_FALSE(of_other_job.get().good);
  EXPECT_FALSE(bad.get().good);
  EXPECT_TRUE(good.get().good);
  EXPECT_TRUE(also.get().good);
}

}  // namespace
}  // namespace lockstep::transfer
