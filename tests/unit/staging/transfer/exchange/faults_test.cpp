// Nodes that break the protocol of the exchange, or stop: the other nodes still end with all data.

#include <fmt/ranges.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <thread>

#include "common/clock.h"
#include "common/sockets.h"
#include "common/tool.h"
#include "staging/cache/store.h"
#include "staging/pack/index.h"
#include "staging/rendezvous/rendezvous.h"
#include "staging/transfer/copy/copied_files.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/source.h"
#include "tests/unit/staging/transfer/nodes_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::HookedFileSystem;
using staging_test::kChunk;
using staging_test::real_call;
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
/// process is killed as soon as all nodes know which data this node has. With `leaves`, this node leaves when it returns.
void take_part(const NodesOptions& nodes, SourceState state, const Serve& serve, bool killed = false,
               const std::function<void()>& leaves = {}) {
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
  rendezvous->set_address({{"name", "fake"}, {"hosts", {"127.0.0.1"}}, {"port", port}});
  rendezvous->gather("places", {{"release", version()}, {"at_once", 1}});
  if (killed) ::kill(server, SIGKILL);
  std::string states(1, static_cast<char>(state));
  for (std::size_t ring = 1;; ++ring) {
    rendezvous->states(ring, states);
    if (leaves) {
      leaves();
      break;
    }
    if (!rendezvous->contents(ring, "", false).again) break;
    states = "h";
  }
  rendezvous->agree({});
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
}

class ExchangeFaults : public NodesTest {
 protected:
  /// Runs two nodes and a fake third one, which says that it has or needs the pack. Its successor is the first node.
  /// Returns the results of the two.
  std::vector<NodeEnd> put_with(const fs::path& pack, SourceState state, const Serve& serve,
                                bool killed = false) {
    NodeChange fake;
    fake.instead = [=](const NodesOptions& nodes) { take_part(nodes, state, serve, killed); };
    auto ends = put_on(3, pack, {{2, fake}});
    EXPECT_EQ(ends.back().code, 0) << ends.back().error;
    ends.pop_back();
    return ends;
  }
};

using ExchangeFaultsLanes = WithLanes<ExchangeFaults>;
INSTANTIATE_TEST_SUITE_P(Lanes, ExchangeFaultsLanes, kLanes);

/// A subscription to the fake node on an authenticated connection.
struct Asked {
  PeerLink& link;
  std::vector<std::size_t> chunks;
};

/// Calls `answer` for a subscription, and ignores all other requests.
void converse(UniqueFd socket, const std::string& key, const fs::path& pack,
              const std::function<void(const Asked&)>& answer) {
  PeerLink link(std::move(socket), PeerLink::Role::server, key, "0.put", {});
  link.handshake(2);
  for (;;) {
    const std::optional<std::string> line = link.receive(seconds(60));
    if (!line) return;
    const std::vector<std::string> words = words_of(*line);
    if (words.at(0) == "lists") {
      const std::string list = staging_test::read(pack / pack::kIndexName);
      link.send(fmt::format("list {} 0 0 {} {}", words.at(1), list.size(), list.size()),
                std::as_bytes(std::span(list)));
    }
    if (words.at(0) != "want") continue;
    std::vector<std::byte> wanted(parse_number(words.at(3)));
    link.receive_bytes(wanted);
    Asked asked{link, {}};
    for (std::size_t chunk = 0; chunk < 8 * wanted.size(); ++chunk) {
      if ((wanted[chunk / 8] >> (chunk % 8) & std::byte{1}) != std::byte{0}) asked.chunks.push_back(chunk);
    }
    answer(asked);
  }
}

/// The chunks of a pack.
struct PackChunks {
  PackChunks(const fs::path& pack, std::uint32_t chunk_bytes)
      : PackChunks(pack, chunk_bytes, shards_of(pack::Index::load(pack / pack::kIndexName))) {}
  PackChunks(const fs::path& pack, std::uint32_t chunk_bytes, const std::vector<ManifestFile>& shards)
      : plan(sizes_of(shards), chunk_bytes), files(FileSystem::real(), pack, shards, plan) {}

  ChunkPlan plan;
  LocalFiles files;
};

/// Sends the first `count` of the chunks, and then breaks the connection if there are more.
void give(const Asked& asked, PackChunks& pack, std::size_t count) {
  for (const std::size_t chunk : asked.chunks) {
    if (count-- == 0) throw PeerError("enough");
    std::vector<std::byte> bytes(pack.plan.bytes(chunk));
    if (!pack.files.read(chunk, bytes)) fail("cannot read chunk {}", chunk);
    asked.link.send(
        fmt::format("chunk 1 {} 2 0 {} {}", chunk, bytes.size(), pack::to_hex(pack::digest_of(bytes))),
        bytes);
  }
}

/// Answers a subscription in this way, on an authenticated connection.
Serve answers(const fs::path& pack, std::function<void(const Asked&)> answer) {
  return [pack, answer = std::move(answer)](UniqueFd socket, const std::string& key) {
    converse(std::move(socket), key, pack, answer);
  };
}

TEST_P(ExchangeFaultsLanes, NodeThatBreaksOffIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  const auto head_of = [](const Asked& asked) {
    return fmt::format("chunk 1 {} 2 0 {} {}", asked.chunks.at(0), kChunk, std::string(32, '0'));
  };
  const Serve silent = [](const UniqueFd&, const std::string&) { ::pause(); };
  const Serve trickles = answers(pack, [head_of](const Asked& asked) {
    asked.link.send(head_of(asked));
    for (;; std::this_thread::sleep_for(milliseconds(100))) asked.link.send("x");
  });
  const Serve stops = answers(pack, [head_of](const Asked& asked) {
    const std::string half(kChunk / 2, 'x');
    asked.link.send(head_of(asked), std::as_bytes(std::span(half)));
    ::pause();
  });
  const Serve has_none = answers(pack, [](const Asked& asked) {
    for (const std::size_t chunk : asked.chunks) asked.link.send(fmt::format("lacks 1 {}", chunk));
  });
  struct Fault {
    SourceState state;
    Serve serve;
    const char* note;
    bool killed = false;
    bool gives_list = false;
  };
  const std::vector<Fault> faults{
      {SourceState::needs, silent, "gave up on fake ("},
      {SourceState::has, silent, "gave up on fake ("},
      {SourceState::has, answers(pack, [](const Asked&) {}), "gave up on fake (no answer)", false, true},
      {SourceState::has, trickles, "(it has chunks and sends none)", false, true},
      {SourceState::has, stops, "(it has chunks and sends none)", false, true},
      {SourceState::has, has_none, "", false, true},
      {SourceState::needs, silent, "gave up on fake (cannot reach it at port ", true},
      {SourceState::has, silent, "gave up on fake (cannot reach it at port ", true}};
  for (std::size_t i = 0; i < faults.size(); ++i) {
    SCOPED_TRACE(i);
    const auto begin = steady_clock::now();
    const auto ends = put_with(pack, faults[i].state, faults[i].serve, faults[i].killed);
    EXPECT_LT(steady_clock::now() - begin, seconds(60)) << "one chunk that trickles would last half an hour";
    // The first node reads all that it lacks; the second one has read its own share.
    const std::uint64_t share = faults[i].state == SourceState::needs ? size_of(pack) / 3 + kChunk : 0;
    const std::uint64_t list = faults[i].gives_list ? fs::file_size(pack / pack::kIndexName) : 0;
    const std::uint64_t from_source = expect_good(ends, pack);
    EXPECT_GE(from_source, size_of(pack) - list);
    EXPECT_LE(from_source, size_of(pack) - list + share);
    EXPECT_THAT(ends[0].note(), HasSubstr(faults[i].note));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

// The node that reads a file looks at the end whether it has changed. If that node has left, the others must look.
TEST_F(ExchangeFaults, FilesThatChangedBeforeTheirReaderLeftAreNotPublished) {
  const fs::path files = folder_ / "files";
  std::vector<ManifestFile> listed;
  for (const std::string name : {"a", "b", "c"}) {
    write("files/" + name, std::string(3 * kChunk, name[0]));
    listed.push_back({name, 3 * kChunk, {}, {}});
  }
  for (const bool changes : {false, true}) {
    SCOPED_TRACE(changes);
    const fs::path served = folder_ / (changes ? "served2" : "served1");
    const Serve gives_all = answers(files, [&](const Asked& asked) {
      PackChunks provider(files, kChunk, listed);
      give(asked, provider, asked.chunks.size() + 1);
      if (changes) write("files/c", std::string(3 * kChunk, 'y'));
      write(served.filename(), "");
    });
    // Not before node 0 has taken what was served: it would read all of it from the source.
    const fs::path taken = folder_ / (changes ? "taken2" : "taken1");
    const auto leaves = [&] {
      while (!fs::exists(served) || !fs::exists(taken)) std::this_thread::sleep_for(milliseconds(1));
    };
    NodeChange fake;
    fake.instead = [&](const NodesOptions& nodes) {
      take_part(nodes, SourceState::needs, gives_all, false, leaves);
    };
    NodeChange takes;
    takes.options = [&](PutOptions& options) {
      options.on.progress = [&](const std::string&, const PutProgress& now) {
        if (now.from_peers >= 6 * kChunk) write(taken.filename(), "");
      };
    };
    auto ends = put_on(3, files, {{0, takes}, {2, fake}});
    ends.pop_back();
    if (!changes) {
      EXPECT_LT(expect_good(ends, files), 3 * 3 * kChunk) << "this test needs a reader that leaves";
    }
    for (const NodeEnd& end : ends)
      EXPECT_THAT(end.error, HasSubstr(changes ? "changed while it was being staged" : ""));
    for (int node = 0; node < 2 && !changes; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, ConnectionThatBreaksAgainAndAgainIsMadeAgain) {
  const fs::path pack = make_large_pack("p", 300);
  for (const std::size_t at_once : {40U, 5U}) {
    SCOPED_TRACE(at_once);
    const auto ends =
        put_with(pack, SourceState::has, [pack, at_once](UniqueFd socket, const std::string& key) {
          PackChunks provider(pack, kChunk);
          converse(std::move(socket), key, pack, [&](const Asked& asked) { give(asked, provider, at_once); });
        });
    EXPECT_EQ(expect_good(ends, pack), 0U) << "the holder gives its index too";
    for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, InvalidMessageEndsOnlyTheConversation) {
  const fs::path pack = make_large_pack("p", 100);
  const std::map<std::string, std::string> messages{
      {"chunk 1 {} 2 0 5 00000000000000000000000000000000", "its chunk has another size"},
      {"chunk 1 9999 2 0 16384 00000000000000000000000000000000", "its chunk does not exist"},
      {"chunk 3 {} 2 0 16384 00000000000000000000000000000000", "unexpected message"},
      {"chunk 1 {} 2 0 many 00000000000000000000000000000000", "'many' is not a number"},
      {"lacks 1 away", "'away' is not a number"},
      {"lacks", "unexpected message"},
      {"hello", "unexpected message"}};
  for (const auto& [answer, why] : messages) {
    SCOPED_TRACE(answer);
    const auto ends = put_with(pack, SourceState::has, answers(pack, [answer = answer](const Asked& asked) {
                                 asked.link.send(fmt::format(fmt::runtime(answer), asked.chunks.at(0)));
                               }));
    EXPECT_EQ(expect_good(ends, pack), size_of(pack) - fs::file_size(pack / pack::kIndexName));
    EXPECT_THAT(ends[0].note(), HasSubstr("(" + why + ")"));
    for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(ExchangeFaults, TwoNodesThatSendOtherBytesThanTheSourceHasAreBothNamed) {
  const fs::path pack = make_large_pack("p", 300);
  const auto flip = [](const SourceRead& read, std::span<std::byte> bytes) {
    if (read.of_shards == 1) bytes[bytes.size() / 2] ^= std::byte{1};
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

/// A disk on which some calls take a while.
HookedFileSystem delayed_calls(milliseconds delay, std::function<bool(const FileCall& call)> delayed) {
  return HookedFileSystem([delay, delayed = std::move(delayed)](const FileCall& call) {
    if (delayed(call)) std::this_thread::sleep_for(delay);
    return real_call(call);
  });
}

// With so little memory, nodes that waited for each other to send before they receive would wait for ever.
TEST_F(ExchangeFaults, NodesWithOneBufferAndSlowDisksDoNotWaitForEachOther) {
  const fs::path pack = make_large_pack("p", 300);
  HookedFileSystem disk =
      delayed_calls(milliseconds(3), [](const FileCall& call) { return call.kind == FileCall::Kind::write; });
  std::map<int, NodeChange> changes;
  for (int node = 0; node < 4; ++node) {
    changes[node].system = &disk;
    changes[node].options = [](PutOptions& options) { options.sizes.buffers = 1; };
  }
  const auto ends = put_on(4, pack, changes);
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

// A node that synced before it passed the list on would add its time to that of all nodes after it.
TEST_F(ExchangeFaults, SlowSyncsOfTheNodesDoNotAddUp) {
  constexpr milliseconds kSync{1000};  // on a busy machine, ten processes take a while to start
  const fs::path pack = make_large_pack("p", 50);
  HookedFileSystem slow = delayed_calls(kSync, [](const FileCall& call) {
    return call.kind == FileCall::Kind::fsync || call.kind == FileCall::Kind::syncfs;
  });
  const auto seconds_on = [&](int count) {
    std::map<int, NodeChange> changes;
    for (int node = 0; node < count; ++node) changes[node].system = &slow;
    const auto begin = steady_clock::now();
    expect_good(put_on(count, pack, changes), pack);
    const auto took = steady_clock::now() - begin;
    for (int node = 0; node < count; ++node) FileSystem::real().remove_all(cache(node));
    return took;
  };
  const auto two = seconds_on(2);
  // Each node makes twelve or thirteen syncs, as the copy is marked earlier or later.
  EXPECT_LT(seconds_on(10), two + 5 * kSync) << "eight further nodes";
}

TEST_F(ExchangeFaults, HolderWithASlowDiskIsNotGivenUp) {
  const fs::path pack = make_large_pack("p", 300);
  put_alone(1, pack);
  // Reading all of it takes far longer than a node may be silent.
  HookedFileSystem slow = delayed_calls(milliseconds(50), [](const FileCall& call) {
    return call.kind == FileCall::Kind::read && fs::path(call.path).extension() == ".tar";
  });
  peer_timeouts_.quiet = milliseconds(500);
  peer_timeouts_.lost = seconds(1);
  NodeChange holder;
  holder.system = &slow;
  holder.options = [](PutOptions& options) { options.verify = Verify::off; };
  const auto ends = put_on(3, pack, {{1, holder}});
  EXPECT_LE(expect_good(ends, pack), fs::file_size(pack / pack::kIndexName));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_F(ExchangeFaults, NodeThatStopsForAMomentIsWaitedFor) {
  const fs::path pack = make_large_pack("p", 300);
  peer_timeouts_.lost = seconds(10);
  ASSERT_NO_FATAL_FAILURE(start_until_the_last_stops(pack));
  std::this_thread::sleep_for(seconds(1));
  resume(2);
  const auto ends = finish();
  EXPECT_EQ(expect_good(ends, pack), size_of(pack));
  for (const NodeEnd& end : ends) EXPECT_THAT(end.note(), IsEmpty());
}

TEST_P(ExchangeFaultsLanes, NodeWithoutSpaceFailsAllWithALineThatSaysWhatToDo) {
  const fs::path pack = make_large_pack("p", 300);
  const auto ends =
      put_on(3, pack, {{1, {.options = [](PutOptions& options) { options.limits.quota = 500'000; }}}});
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

// Chunks that nobody will store any longer must not keep the memory that other threads wait for.
TEST_P(ExchangeFaultsLanes, NodeWhoseDiskFailsInTheMiddleFailsAllWithALine) {
  const fs::path pack = make_large_pack("p", 300);
  staging_test::WatchedFileSystem disk(
      [](int n, const FileCall& call) { return n > 60 && call.kind == FileCall::Kind::write ? EIO : 0; });
  NodeChange fails{.system = &disk};
  fails.options = [](PutOptions& options) { options.sizes.buffers = 4; };
  const auto begin = steady_clock::now();
  for (const NodeEnd& end : put_on(3, pack, {{1, fails}})) {
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error, AllOf(HasSubstr("127.0.0.1:0: "), HasSubstr("Input/output error")));
  }
  EXPECT_LT(steady_clock::now() - begin, seconds(10));
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
