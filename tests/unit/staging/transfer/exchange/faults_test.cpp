// Nodes that break the exchange's rules, or off: what the others make of it.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "common/clock.h"
#include "staging/cache/store.h"
#include "staging/pack/index.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/rendezvous/rendezvous_socket.h"
#include "staging/transfer/exchange/shelf.h"
#include "tests/unit/staging/transfer/nodes_world.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

/// What a fake node does with a connection, from the first byte.
using Serve = std::function<void(UniqueFd socket, const std::string& key)>;

[[noreturn]] void serve_all(const UniqueFd& listening, const std::string& key, const Serve& serve) {
  std::vector<std::jthread> threads;
  for (;;) {
    UniqueFd socket(::accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket) fail_errno("accept");
    threads.emplace_back([&serve, &key, fd = socket.release()] {
      try {
        serve(UniqueFd(fd), key);
      } catch (const PeerError&) {
        // The other side has given it up.
      }
    });
  }
}

/// Takes part in the rounds as any node, and leaves what it is asked for to a process that serves; with
/// `killed` that is killed as soon as all know what this node has.
void take_part(const NodesOptions& nodes, const std::string& state, const Serve& serve, bool killed = false) {
  const std::string first = nodes.nodes.front();
  Hello hello{0,
              "put",
              nodes.nodes[nodes.node_id],
              nodes.node_id,
              static_cast<std::uint32_t>(nodes.nodes.size()),
              fmt::format("{}", fmt::join(nodes.nodes, ",")),
              ""};
  std::unique_ptr<Rendezvous> rendezvous;
  const auto until = steady_clock::now() + seconds(10);
  while (!rendezvous) {
    try {
      rendezvous = std::make_unique<Rendezvous>(
          RendezvousAddress{std::stoi(first.substr(first.rfind(':') + 1)), {"127.0.0.1"}, nodes.key}, hello,
          [](const std::string&) {});
    } catch (const Error&) {
      if (steady_clock::now() > until) throw;
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  int port = 0;
  UniqueFd listening = listen_on(0, 0, port);
  const pid_t server = staging_test::start_child([&] { serve_all(listening, nodes.key, serve); });
  listening.reset();
  rendezvous->gather("places", {{"name", "fake"}, {"hosts", {"127.0.0.1"}}, {"port", port}});
  rendezvous->gather("there:0", {{"here", 1}});
  rendezvous->gather("source:0:0", {{"none", 1}});
  if (killed) ::kill(server, SIGKILL);
  rendezvous->gather("have:0", {{"state", state}, {"list", 0}, {"xxh3", ""}});
  rendezvous->gather("end:0", {{"end", 1}, {"liars", nlohmann::json::array()}, {"content", ""}});
  rendezvous->agree({});
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

class ExchangeFaults : public NodesTest {
 protected:
  /// By one of the two: they divide what the fake one was to give. Unless, on a loaded machine, they have
  /// given up each other too.
  void expect_read_once(const std::vector<NodeEnd>& ends, const fs::path& pack) const {
    const std::uint64_t from_source = expect_good(ends, pack);
    for (const NodeEnd& end : ends) {
      std::string others = end.note();
      for (std::size_t at = 0; (at = others.find("fake gives nothing")) != std::string::npos;)
        others.erase(at, 18);
      if (others.find("gives nothing any more") != std::string::npos) {
        EXPECT_LE(from_source, 2 * size_of(pack)) << others;
        return;
      }
    }
    EXPECT_EQ(from_source, size_of(pack));
  }

  static ObjectShelf shelf_of(const fs::path& pack) {
    const pack::Index index = pack::Index::load(pack / "index.lockstep");
    std::vector<ManifestFile> files;
    for (std::size_t s = 0; s < index.shards(); ++s)
      files.push_back({std::string(index.shard_name(s)), index.shard(s).size, {}, {}});
    return {pack, files, kChunk, nullptr};
  }

  /// Two nodes and one more that has the pack, if `state` says "has", and serves it so. What the two came to.
  std::vector<NodeEnd> put_with(const fs::path& pack, const std::string& state, const Serve& serve,
                                bool killed = false) {
    NodeChange fake;
    fake.instead = [=](const NodesOptions& nodes) { take_part(nodes, state, serve, killed); };
    auto ends = put_on(3, pack, {{2, fake}});
    EXPECT_EQ(ends.back().code, 0) << ends.back().error;
    ends.pop_back();
    return ends;
  }
};

/// A line that the fake node was sent by who has proved itself.
struct Asked {
  Link& link;
  int fd;
  std::uint32_t node;
  std::vector<std::string> words;
};

/// A conversation that goes on as long as `answer` says so.
void converse(UniqueFd socket, const std::string& key, const std::function<bool(const Asked&)>& answer) {
  const int fd = socket.get();
  Link link(std::move(socket), Session::Role::server, key, "0.put", {});
  const std::uint32_t node = link.shake_hands(2);
  for (;;) {
    const std::optional<std::string> line = link.receive(seconds(60));
    if (!line || !answer({link, fd, node, words_of(*line)})) return;
  }
}

void give(const Asked& asked, ObjectShelf& shelf) {
  const std::size_t chunk = number_of(asked.words.at(2));
  std::vector<std::byte> bytes(shelf.bytes(chunk));
  pack::Digest digest;
  ASSERT_TRUE(shelf.read(chunk, bytes, digest));
  asked.link.send(fmt::format("chunk 0 {} {} {}", chunk, bytes.size(), pack::to_hex(digest)), bytes);
}

TEST_F(ExchangeFaults, OneThatAcceptsAndNeverAnswersIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  for (const std::string& state : {std::string("needs"), std::string("has")}) {
    SCOPED_TRACE(state);
    const auto ends = put_with(pack, state, [](const UniqueFd&, const std::string&) { ::pause(); });
    expect_read_once(ends, pack);
    for (const NodeEnd& end : ends)
      EXPECT_THAT(end.note(), HasSubstr("fake gives nothing any more (it does not answer)"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, OneThatKnowsTheKeyAndNeverAnswersIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "has", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked&) { return true; });
  });
  expect_read_once(ends, pack);
  for (const NodeEnd& end : ends)
    EXPECT_THAT(end.note(), HasSubstr("fake gives nothing any more (it does not answer)"));
}

TEST_F(ExchangeFaults, OneThatTricklesItsBytesIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto begin = steady_clock::now();
  const auto ends = put_with(pack, "has", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked& asked) {
      asked.link.send(fmt::format("chunk 0 {} {} {}", asked.words.at(2), kChunk, std::string(32, '0')));
      for (const char byte = 'x'; ::send(asked.fd, &byte, 1, MSG_NOSIGNAL) == 1;)
        std::this_thread::sleep_for(milliseconds(100));
      return false;
    });
  });
  EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "one chunk would last half an hour";
  expect_read_once(ends, pack);
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("(it sends too slowly)"));
}

TEST_F(ExchangeFaults, OneThatStopsInTheMiddleOfAChunkIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "has", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked& asked) {
      const std::string half(kChunk / 2, 'x');
      asked.link.send(fmt::format("chunk 0 {} {} {}", asked.words.at(2), kChunk, std::string(32, '0')),
                      std::as_bytes(std::span(half)));
      ::pause();
      return false;
    });
  });
  expect_read_once(ends, pack);
  for (const NodeEnd& end : ends)
    EXPECT_THAT(end.note(), HasSubstr("(it has stopped in the middle of a chunk)"));
}

TEST_F(ExchangeFaults, OneThatIsKilledAfterItSaidWhatItHasIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  for (const std::string& state : {std::string("needs"), std::string("has")}) {
    SCOPED_TRACE(state);
    const auto ends = put_with(
        pack, state, [](const UniqueFd&, const std::string&) { ::pause(); }, true);
    expect_read_once(ends, pack);
    for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("fake gives nothing any more"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

// One that is given up while it is asked to cede comes back, cedes to who does not hear it, and sends the
// others there.
TEST_F(ExchangeFaults, OneThatIsGivenUpBeforeItAnswersWhatItCedesKeepsNobodyWaiting) {
  const fs::path pack = make_large_pack("p", 300);
  static constexpr std::uint32_t kOther = 0;  // whom the asker would ask for them
  static constexpr std::uint32_t kAsker = 1;
  NodeChange fake;
  fake.instead = [](const NodesOptions& nodes) {
    ::alarm(20);
    std::atomic<bool> given_up = false;
    take_part(nodes, "needs", [&given_up](UniqueFd socket, const std::string& key) {
      ::alarm(20);
      Link link(std::move(socket), Session::Role::server, key, "0.put", {});
      const std::uint32_t node = link.shake_hands(2);
      bool ceding = false;
      std::vector<std::string> chunks;
      try {
        for (;;) {
          const std::optional<std::string> line = link.receive(milliseconds(200));
          const std::vector<std::string> words = line ? words_of(*line) : std::vector<std::string>();
          if (line && words.at(0) == "get") chunks.push_back(words.at(2));
          if (line && words.at(0) == "cede") {
            ceding = true;
            if (node == kOther) link.send("ceded 0");
          }
          if (node == kOther && given_up) {
            for (const std::string& chunk : std::exchange(chunks, {}))
              link.send(fmt::format("moved 0 {} {}", chunk, kAsker));
          }
          if (node == kOther || !ceding) link.send("alive");
        }
      } catch (const PeerError&) {
        if (node == kAsker) given_up = true;
        throw;
      }
    });
  };
  NodeChange other;
  other.before = [] { ::alarm(15); };
  NodeChange asker = other;  // reads so slowly that only the fake's are still to come when it is done
  SourceReads slow(pack, [](const SourceRead&) { std::this_thread::sleep_for(milliseconds(20)); });
  asker.system = &slow;
  auto ends = put_on(3, pack, {{kOther, other}, {kAsker, asker}, {2, fake}});
  ends.pop_back();
  expect_read_once(ends, pack);
  EXPECT_THAT(ends[kAsker].note(), HasSubstr("fake gives nothing any more (it does not answer)"));
}

TEST_F(ExchangeFaults, AConnectionThatBreaksOnceIsMadeAnew) {
  const fs::path pack = make_large_pack("p", 300);
  const auto given = std::make_shared<std::array<std::atomic<int>, 2>>();
  const auto ends = put_with(pack, "has", [pack, given](UniqueFd socket, const std::string& key) {
    ObjectShelf shelf = shelf_of(pack);
    converse(std::move(socket), key, [&](const Asked& asked) {
      if (++given->at(asked.node) == 4) return false;
      give(asked, shelf);
      return true;
    });
  });
  EXPECT_EQ(expect_good(ends, pack), fs::file_size(pack / "index.lockstep"));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeFaults, OneWhoseConnectionsBreakAgainAndAgainIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "has", [pack](UniqueFd socket, const std::string& key) {
    ObjectShelf shelf = shelf_of(pack);
    int given = 0;
    converse(std::move(socket), key, [&](const Asked& asked) {
      if (++given > 3) return false;
      give(asked, shelf);
      return true;
    });
  });
  const std::uint64_t from_source = expect_good(ends, pack);
  EXPECT_GT(from_source, size_of(pack) / 2);
  // What was on its way when a connection broke may be read by both.
  EXPECT_LE(from_source, size_of(pack) + size_of(pack) / 8);
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("fake gives nothing any more"));
}

TEST_F(ExchangeFaults, WhatMakesNoSenseEndsTheConversationAndNothingElse) {
  const fs::path pack = make_large_pack("p", 100);
  const std::map<std::string, std::string> answers{
      {"chunk 0 {} 5 00000000000000000000000000000000", "it has another source"},
      {"chunk 0 9999 16384 00000000000000000000000000000000", "it answers what it was not asked"},
      {"chunk 3 {} 16384 00000000000000000000000000000000", "it makes no sense"},
      {"chunk 0 {} many 00000000000000000000000000000000", "'many' is no number"},
      {"moved 0 {}", "it makes no sense"},
      {"moved 0 {} away", "'away' is no number"},
      {"gone", "it makes no sense"},
      {"hello", "it makes no sense"}};
  for (const auto& [answer, why] : answers) {
    SCOPED_TRACE(answer);
    const auto ends = put_with(pack, "has", [answer = answer](UniqueFd socket, const std::string& key) {
      converse(std::move(socket), key, [&](const Asked& asked) {
        asked.link.send(fmt::format(fmt::runtime(answer), asked.words.at(2)));
        return true;
      });
    });
    expect_read_once(ends, pack);
    for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("(" + why + ")"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, OneThatSaysItsChunksAreGoneOrMovedToNobodyIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 100);
  for (const std::string& answer : {std::string("gone 0 {}"), std::string("moved 0 {} 77")}) {
    SCOPED_TRACE(answer);
    const auto ends = put_with(pack, "has", [answer](UniqueFd socket, const std::string& key) {
      converse(std::move(socket), key, [&](const Asked& asked) {
        asked.link.send(fmt::format(fmt::runtime(answer), asked.words.at(2)));
        return true;
      });
    });
    expect_good(ends, pack);
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, TwoThatSendOtherBytesThanTheSourceHasAreBothNamed) {
  const fs::path pack = make_large_pack("p", 300);
  const auto flip = [](const SourceRead& read, std::span<std::byte> bytes) {
    if (read.n == 3 || read.n == 5) bytes[bytes.size() / 2] ^= std::byte{1};
  };
  SourceReads lies(pack, {}, flip);
  SourceReads lies_too(pack, {}, flip);
  NodeChange liar, other;
  liar.system = &lies;
  other.system = &lies_too;
  liar.host = "127.0.0.2";
  other.host = "127.0.0.3";
  const auto ends = put_on(4, pack, {{1, liar}, {3, other}});
  expect_good(ends, pack);
  for (const std::size_t honest : {0U, 2U}) {
    EXPECT_THAT(ends[honest].note(),
                AllOf(HasSubstr("127.0.0.2 sent other bytes"), HasSubstr("127.0.0.3 sent other bytes")));
  }
}

TEST_F(ExchangeFaults, OneThatStopsForAMomentIsWaitedFor) {
  const fs::path pack = make_large_pack("p", 300);
  peer_patience_.silence = seconds(10);
  ASSERT_NO_FATAL_FAILURE(start_until_the_last_stops(pack));
  std::this_thread::sleep_for(seconds(1));
  ::kill(running_[2], SIGCONT);
  const auto ends = finish();
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeFaults, OneWithoutRoomIsOneOutcomeForAllThatSaysWhatToDo) {
  const fs::path pack = make_large_pack("p", 300);
  NodeChange full;
  full.options = [](PutOptions& options) { options.limits.quota = 500'000; };
  const auto ends = put_on(3, pack, {{1, full}});
  for (const NodeEnd& end : ends) {
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error,
                AllOf(HasSubstr("127.0.0.1:0: " + pack.string() + " needs"), HasSubstr("quota 488 KiB")));
  }
  PutOptions alone;
  alone.cache_dir = cache(1);
  alone.limits.quota = 500'000;
  EXPECT_THROW(put({pack.string()}, alone), cache::NoRoom) << "who calls it can tell it from other errors";
  expect_good(put_on(3, pack), pack);
}

// The moment at which the next byte may be read is one of the clock that began with the machine's start.
TEST_F(ExchangeFaults, ALimitThatAnotherBootHasLeftHoldsNobodyUp) {
  const fs::path pack = make_large_pack("p", 100);
  const std::array<std::uint64_t, 2> left{monotonic_ns() + std::uint64_t{3600} * 1'000'000'000, 1};
  NodeChange limited;
  limited.options = [](PutOptions& options) { options.bandwidth = 50'000'000; };
  for (int node = 0; node < 2; ++node) {
    fs::create_directory(cache(node));
    fs::permissions(cache(node), fs::perms::owner_all);
    write(fmt::format("cache{}/bandwidth", node),
          std::string(reinterpret_cast<const char*>(left.data()), sizeof left));
  }
  const auto begin = steady_clock::now();
  expect_good(put_on(2, pack, {{0, limited}, {1, limited}}), pack);
  EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "and not the hour";
}

}  // namespace
}  // namespace lockstep::transfer
