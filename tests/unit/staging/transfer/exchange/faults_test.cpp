// Nodes that break the protocol of the exchange, or stop: the other nodes still end with all data.

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <thread>

#include "common/clock.h"
#include "common/sockets.h"
#include "staging/cache/store.h"
#include "staging/pack/index.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/exchange/chunk_provider.h"
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

/// Handles a connection to a fake node, from the first byte.
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
        // The other side has given this node up.
      }
    });
  }
}

/// Takes part in the rounds as any node does; another process serves its connections. With `killed`, that
/// process is killed as soon as all nodes know which data this node has.
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
  rendezvous->gather("end:0", {{"end", 1}, {"corrupt_senders", nlohmann::json::array()}, {"content", ""}});
  rendezvous->agree({});
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

class ExchangeFaults : public NodesTest {
 protected:
  /// The two nodes divide the share of the fake one. On a loaded machine they may have given up each other
  /// too.
  void expect_read_once(const std::vector<NodeEnd>& ends, const fs::path& pack) const {
    const std::uint64_t from_source = expect_good(ends, pack);
    for (const NodeEnd& end : ends) {
      std::string others = end.note();
      for (std::size_t at = 0; (at = others.find("gave up on fake")) != std::string::npos;)
        others.erase(at, 15);
      if (others.find("gave up on") != std::string::npos) {
        EXPECT_LE(from_source, 2 * size_of(pack)) << others;
        return;
      }
    }
    EXPECT_EQ(from_source, size_of(pack));
  }

  static ObjectProvider provider_of(const fs::path& pack) {
    const pack::Index index = pack::Index::load(pack / "index.lockstep");
    std::vector<ManifestFile> files;
    for (std::size_t s = 0; s < index.shards(); ++s)
      files.push_back({std::string(index.shard_name(s)), index.shard(s).size, {}, {}});
    return {pack, files, kChunk};
  }

  /// Runs two nodes and a fake third one, which says that it has or needs the pack. Returns the results of
  /// the two.
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

/// A request to the fake node on an authenticated connection.
struct Asked {
  PeerLink& link;
  int fd;
  std::uint32_t node;
  std::vector<std::string> words;
};

/// Answers requests as long as `answer` returns true.
void converse(UniqueFd socket, const std::string& key, const std::function<bool(const Asked&)>& answer) {
  const int fd = socket.get();
  PeerLink link(std::move(socket), Session::Role::server, key, "0.put", {});
  const std::uint32_t node = link.handshake(2);
  for (;;) {
    const std::optional<std::string> line = link.receive(seconds(60));
    if (!line) return;
    const std::vector<std::string> words = words_of(*line);
    if (words.at(0) != "idle" && !answer({link, fd, node, words})) return;
  }
}

void give(const Asked& asked, ObjectProvider& provider) {
  const std::size_t chunk = parse_number(asked.words.at(2));
  std::vector<std::byte> bytes(provider.bytes(chunk));
  pack::Digest digest;
  ASSERT_TRUE(provider.read(chunk, bytes, digest));
  asked.link.send(fmt::format("chunk 0 {} {} {}", chunk, bytes.size(), pack::to_hex(digest)), bytes);
}

TEST_F(ExchangeFaults, NodeThatAcceptsAndNeverAnswersIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  for (const std::string& state : {std::string("needs"), std::string("has")}) {
    SCOPED_TRACE(state);
    const auto ends = put_with(pack, state, [](const UniqueFd&, const std::string&) { ::pause(); });
    expect_read_once(ends, pack);
    for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("gave up on fake (no answer)"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, NodeThatKnowsTheKeyAndNeverAnswersIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "has", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked&) { return true; });
  });
  expect_read_once(ends, pack);
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("gave up on fake (no answer)"));
}

TEST_F(ExchangeFaults, NodeThatTricklesItsBytesIsReplacedByTheSource) {
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

TEST_F(ExchangeFaults, NodeThatStopsInTheMiddleOfAChunkIsReplacedByTheSource) {
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
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("(it stopped in the middle of a chunk)"));
}

TEST_F(ExchangeFaults, NodeThatIsKilledAfterItSaidWhatItHasIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  for (const std::string& state : {std::string("needs"), std::string("has")}) {
    SCOPED_TRACE(state);
    const auto ends = put_with(
        pack, state, [](const UniqueFd&, const std::string&) { ::pause(); }, true);
    expect_read_once(ends, pack);
    for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("gave up on fake"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

// The fake node sends one node to the successors, and the other node gives it up.
TEST_F(ExchangeFaults, NodeThatAnswersOnlyOneOfTheOthersDelaysNeitherForEver) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "needs", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked& asked) {
      if (asked.node == 0) asked.link.send(fmt::format("elsewhere 0 {}", asked.words.at(2)));
      return true;
    });
  });
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  EXPECT_THAT(ends[0].note(), IsEmpty());
  EXPECT_THAT(ends[1].note(), HasSubstr("gave up on fake (no answer)"));
}

TEST_F(ExchangeFaults, ConnectionThatBreaksOnceIsMadeAgain) {
  const fs::path pack = make_large_pack("p", 300);
  const auto given = std::make_shared<std::array<std::atomic<int>, 2>>();
  const auto ends = put_with(pack, "has", [pack, given](UniqueFd socket, const std::string& key) {
    ObjectProvider provider = provider_of(pack);
    converse(std::move(socket), key, [&](const Asked& asked) {
      if (++given->at(asked.node) == 4) return false;
      give(asked, provider);
      return true;
    });
  });
  EXPECT_EQ(expect_good(ends, pack), fs::file_size(pack / "index.lockstep"));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeFaults, NodeWhoseConnectionsBreakAgainAndAgainIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends = put_with(pack, "has", [pack](UniqueFd socket, const std::string& key) {
    ObjectProvider provider = provider_of(pack);
    int given = 0;
    converse(std::move(socket), key, [&](const Asked& asked) {
      if (++given > 3) return false;
      give(asked, provider);
      return true;
    });
  });
  const std::uint64_t from_source = expect_good(ends, pack);
  EXPECT_GT(from_source, size_of(pack) / 2);
  // Chunks that were on their way when a connection broke may be read by both.
  EXPECT_LE(from_source, size_of(pack) + size_of(pack) / 8);
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), HasSubstr("gave up on fake"));
}

TEST_F(ExchangeFaults, InvalidMessageEndsOnlyTheConversation) {
  const fs::path pack = make_large_pack("p", 100);
  const std::map<std::string, std::string> answers{
      {"chunk 0 {} 5 00000000000000000000000000000000", "its chunk has another size"},
      {"chunk 0 9999 16384 00000000000000000000000000000000",
       "it answers for a chunk that was not asked for"},
      {"chunk 3 {} 16384 00000000000000000000000000000000", "unexpected message"},
      {"chunk 0 {} many 00000000000000000000000000000000", "'many' is not a number"},
      {"elsewhere 0 9999", "it answers for a chunk that was not asked for"},
      {"elsewhere 0 away", "'away' is not a number"},
      {"elsewhere", "unexpected message"},
      {"hello", "unexpected message"}};
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

TEST_F(ExchangeFaults, NodeThatDoesNotHaveItsChunksIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 100);
  const auto ends = put_with(pack, "has", [](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, [](const Asked& asked) {
      asked.link.send(fmt::format("elsewhere 0 {}", asked.words.at(2)));
      return true;
    });
  });
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
}

TEST_F(ExchangeFaults, TwoNodesThatSendOtherBytesThanTheSourceHasAreBothNamed) {
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

TEST_F(ExchangeFaults, NodeThatStopsForAMomentIsWaitedFor) {
  const fs::path pack = make_large_pack("p", 300);
  peer_timeouts_.silence = seconds(10);
  ASSERT_NO_FATAL_FAILURE(start_until_the_last_stops(pack));
  std::this_thread::sleep_for(seconds(1));
  resume(2);
  const auto ends = finish();
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeFaults, NodeWithoutSpaceFailsAllWithALineThatSaysWhatToDo) {
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
  EXPECT_THROW(put({pack.string()}, alone), cache::NoSpace) << "the caller can tell it from other errors";
  expect_good(put_on(3, pack), pack);
}

// The file holds the moment at which the next byte may be read, counted from the start of the machine.
TEST_F(ExchangeFaults, LimitFromBeforeARebootDelaysNobody) {
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
  EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "it waited for the limit of the earlier boot";
}

}  // namespace
}  // namespace lockstep::transfer
