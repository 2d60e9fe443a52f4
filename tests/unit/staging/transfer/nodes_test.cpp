// Nodes that together read a source once: which share each reads, and who reads it when a node fails.

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "common/sockets.h"
#include "staging/cache/store.h"
#include "staging/pack/index.h"
#include "staging/transfer/exchange/exchange.h"
#include "tests/unit/staging/transfer/nodes_world.h"
#include "tests/unit/staging/watched_file_system.h"

namespace lockstep::transfer {
namespace {

namespace fs = std::filesystem;

using staging_test::content_of;
using staging_test::kChunk;
using staging_test::wait_for;
using std::chrono::seconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::HasSubstr;

class TransferNodes : public NodesTest {
 protected:
  fs::path make_plain(int files) const {
    for (int i = 0; i < files; ++i) {
      write(fmt::format("d/{}/x", i),
            std::string(static_cast<std::size_t>(1000 * i), static_cast<char>('a' + i % 26)));
    }
    return folder_ / "d";
  }
  /// Whether all bytes of the pack are in the node's cache, finished or not.
  bool has_all(int node, const fs::path& pack) const {
    const std::optional<std::vector<std::string>> objects =
        FileSystem::real().list_if_there(cache(node) / "objects");
    if (!objects || objects->size() != 1) return false;
    try {
      return content_of(cache(node) / "objects" / objects->front() / "files") == content_of(pack);
    } catch (const std::exception&) {  // it has just been renamed
      return false;
    }
  }
};

using TransferNodesLanes = WithLanes<TransferNodes>;
INSTANTIATE_TEST_SUITE_P(Lanes, TransferNodesLanes, kLanes);

TEST_F(TransferNodes, ReadTheSourceOnceWhateverTheirNumber) {
  const fs::path pack = make_large_pack("p", 300);
  for (int count = 2; count <= 4; ++count) {
    SCOPED_TRACE(count);
    EXPECT_EQ(expect_good(put_on(count, pack), pack), size_of(pack));
    for (int node = 0; node < count; ++node) FileSystem::real().remove_all(cache(node));
  }
  const fs::path small = make_pack("s", {{"a", "more nodes than chunks"}});
  EXPECT_EQ(expect_good(put_on(4, small), small), size_of(small));
}

TEST_F(TransferNodes, ShareThePlainFilesOfAFolderToo) {
  const fs::path plain = make_plain(40);
  const auto ends = put_on(3, plain);
  EXPECT_EQ(expect_good(ends, plain), size_of(plain));
  for (const NodeEnd& end : ends) EXPECT_LT(end.result.at("from_source"), 2 * size_of(plain) / 3);
}

TEST_F(TransferNodes, NodeThatHasItServesTheOthersAndTheSourceIsNotRead) {
  const fs::path pack = make_large_pack("p", 300);
  for (const int has : {0, 1}) {
    SCOPED_TRACE(has);
    for (int node = 0; node < 3; ++node) FileSystem::real().remove_all(cache(node));
    put_alone(has, pack);
    const auto ends = put_on(3, pack);
    EXPECT_EQ(expect_good(ends, pack), 0U) << "the holder gives its index too";
    EXPECT_TRUE(ends[static_cast<std::size_t>(has)].result.at("hit"));
    EXPECT_FALSE(ends[2].result.at("hit"));
  }
  const auto warm = put_on(3, pack);
  EXPECT_EQ(expect_good(warm, pack), 0U);
  for (const NodeEnd& end : warm) EXPECT_TRUE(end.result.at("hit"));
}

TEST_F(TransferNodes, NodeWhoseCacheLiesInTheSourceIsNamed) {
  const fs::path plain = make_plain(40);
  for (const NodeEnd& end : put_on(
           2, plain, {{1, {.options = [&](PutOptions& options) { options.cache_dir = plain / "cache"; }}}})) {
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error, HasSubstr("cache lies in it"));
  }
}

TEST_F(TransferNodes, NodeThatSeesOtherTimesAdoptsTheFirstNodesIdentity) {
  const fs::path pack = make_large_pack("p", 100);
  // The second node sees the same pack with other times.
  fs::create_directories(folder_ / "view");
  fs::copy(pack, folder_ / "view/p", fs::copy_options::recursive);
  NodeChange other;
  other.before = [&] { see_instead(pack, folder_ / "view/p"); };
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  expect_good(put_on(2, pack, {{1, other}}), pack);
  // Then it sees another pack under the same name.
  FileSystem::real().remove_all(folder_ / "view/p");
  fs::rename(make_large_pack("q", 90), folder_ / "view/p");
  for (int node = 0; node < 2; ++node) FileSystem::real().remove_all(cache(node));
  for (const NodeEnd& end : put_on(2, pack, {{1, other}})) {
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error, HasSubstr("read another version"));
  }
}

TEST_P(TransferNodesLanes, NodeThatIsKilledEndsTheOthersByNameAndTheNextCallGoesOn) {
  const fs::path pack = make_large_pack("p", 300);
  SourceReads dies(pack, [](const SourceRead& read) {
    if (read.of_shards == 1) ::raise(SIGKILL);
  });
  const auto begin = steady_clock::now();
  const auto ends = put_on(3, pack, {{1, {.system = &dies}}});
  EXPECT_LT(steady_clock::now() - begin, seconds(60));
  EXPECT_EQ(ends[1].code, 128 + SIGKILL);
  for (const std::size_t node : {0U, 2U}) {
    EXPECT_EQ(ends[node].code, 1);
    EXPECT_THAT(ends[node].error, HasSubstr("127.0.0.1:0: disconnected while it was staging"));
  }
  expect_good(put_on(3, pack), pack);
}

// With several connections, their threads must not keep the failing node from telling the others.
TEST_P(TransferNodesLanes, NodeThatFailsInAnyPhaseEndsAllWithinSeconds) {
  const fs::path pack = make_large_pack("p", 300);
  std::uint64_t data = 0;
  for (const auto& [file, content] : content_of(pack)) data += file.ends_with(".tar") ? content.size() : 0;
  std::atomic<std::uint64_t> written = 0;  // of the shards, by the failing node
  const auto part_of_copy = [&written](const FileCall& call) {
    const bool shard = call.kind == FileCall::Kind::write && fs::path(call.path).extension() == ".tar";
    if (shard) written += call.size;
    return shard;
  };
  using Fails = std::function<bool(const FileCall& call)>;
  const std::map<std::string, Fails> phases{
      {"list",
       [](const FileCall& call) {
         return call.kind == FileCall::Kind::write &&
                std::string(call.path).find(".incoming-") != std::string::npos;
       }},
      {"first read",
       [&pack](const FileCall& call) {
         return call.kind == FileCall::Kind::read && std::string(call.path).starts_with(pack.string()) &&
                fs::path(call.path).extension() == ".tar";
       }},
      {"first chunk", part_of_copy},
      {"middle", [&](const FileCall& call) { return part_of_copy(call) && 2 * written >= data; }},
      {"last chunk", [&](const FileCall& call) { return part_of_copy(call) && written >= data; }},
      {"contents",
       [&](const FileCall& call) {
         part_of_copy(call);
         return written >= data &&
                (call.kind == FileCall::Kind::fsync || call.kind == FileCall::Kind::syncfs);
       }},
      {"publishing", [](const FileCall& call) {
         return call.kind == FileCall::Kind::rename &&
                fs::path(call.path).filename().string().starts_with(".incoming-");
       }}};
  for (const auto& [phase, fails] : phases) {
    SCOPED_TRACE(phase);
    written = 0;
    staging_test::WatchedFileSystem disk(
        [fails = fails](int, const FileCall& call) { return fails(call) ? EACCES : 0; }, true);
    start(3, pack, {{1, {.system = &disk, .host = "127.0.0.2"}}});
    for (const NodeEnd& end : finish(seconds(10))) {
      EXPECT_EQ(end.code, 1);
      EXPECT_THAT(end.error, AllOf(HasSubstr("127.0.0.2:0: "), HasSubstr("Permission denied")));
    }
    for (int node = 0; node < 3; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_P(TransferNodesLanes, NodeThatStopsForAWhileIsReplacedByTheSource) {
  const fs::path pack = make_large_pack("p", 300);
  ASSERT_NO_FATAL_FAILURE(start_until_the_last_stops(pack));
  EXPECT_TRUE(wait_for([&] { return has_all(0, pack) && has_all(1, pack); }));
  resume(2);
  const auto ends = finish();
  EXPECT_GT(expect_good(ends, pack), size_of(pack));
  EXPECT_THAT(ends[0].note(), HasSubstr("is read from the source"));
  EXPECT_THAT(ends[1].note(), testing::IsEmpty());
}

TEST_F(TransferNodes, DamagedChunkOfAHolderIsReadFromTheSourceOnceAndTheHolderGetsItFromTheOthers) {
  const fs::path pack = make_large_pack("p", 300);
  const fs::path plain = make_plain(10);
  write("d/large", std::string(2'000'000, 'l'));
  const std::map<fs::path, std::string> damaged{{pack, "shard-000001.tar"}, {plain, "large"}};
  for (const auto& [source, file] : damaged) {
    SCOPED_TRACE(source);
    staging_test::flip_byte(put_alone(1, source).path / file, 10);
    const auto ends =
        put_on(3, source, {{1, {.options = [](PutOptions& options) { options.verify = Verify::off; }}}});
    const std::uint64_t read = expect_good(ends, source);
    EXPECT_GT(read, 0U);
    EXPECT_LE(read, kChunk) << "the holder gives its index too";
    EXPECT_THAT(ends[1].note(), HasSubstr("was damaged"));
    EXPECT_EQ(ends[1].result.at("from_source"), 0);
    for (int node = 0; node < 3; ++node) FileSystem::real().remove_all(cache(node));
  }
}

TEST_F(TransferNodes, NodeThatSeesOtherFilesUnderTheSameNameReadsNoneOfThem) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root to mount";
  write("d/x", std::string(600'000, 'a'));
  write("view/x", std::string(600'000, 'b'));
  fs::last_write_time(folder_ / "view/x", fs::file_time_type::clock::now() - std::chrono::hours(1));
  const auto ends =
      put_on(2, folder_ / "d", {{1, {.before = [&] { see_instead(folder_ / "d", folder_ / "view"); }}}});
  for (const NodeEnd& end : ends) {
    EXPECT_EQ(end.code, 1);
    EXPECT_THAT(end.error, HasSubstr("read another version"));
  }
  EXPECT_THAT(ends[0].error, HasSubstr("127.0.0.1:0"));
}

TEST_F(TransferNodes, BitThatFlipsWhileTheDiskIsReadBackIsRepaired) {
  const fs::path pack = make_large_pack("p", 300);
  std::atomic<int> reads = 0;
  staging_test::HookedFileSystem flips([&](const FileCall& call) {
    const ssize_t got = staging_test::real_call(call);
    const fs::path file = call.path;
    const bool copy = call.kind == FileCall::Kind::read && file.extension() == ".tar" &&
                      file.string().find(".incoming-") != std::string::npos;
    if (copy && got > 1000 && ++reads == 1) call.into[500] ^= std::byte{1};
    return got;
  });
  expect_good(put_on(2, pack, {{1, {.system = &flips}}}), pack);
}

TEST_F(TransferNodes, BitThatFlipsOnTheWayIsFoundOnArrival) {
  const fs::path pack = make_large_pack("p", 300);
  put_alone(1, pack);
  std::atomic<int> reads = 0;  // for other nodes
  staging_test::HookedFileSystem flips([&](const FileCall& call) {
    const ssize_t got = staging_test::real_call(call);
    std::array<char, 16> thread{};
    ::pthread_getname_np(::pthread_self(), thread.data(), thread.size());
    if (call.kind == FileCall::Kind::read && thread.data() == std::string(Exchange::kThreadName) &&
        got > 1000 && ++reads == 2) {
      call.into[500] ^= std::byte{1};
    }
    return got;
  });
  const auto ends = put_on(2, pack, {{1, {.system = &flips}}});
  EXPECT_EQ(expect_good(ends, pack), kChunk) << "that chunk is read from the source, once";
  EXPECT_THAT(ends[0].note(), HasSubstr("arrived damaged"));
  EXPECT_TRUE(ends[1].result.at("hit")) << "its copy is not damaged";
}

/// Another job, which holds the lock of an object in the caches of some nodes and never makes a copy.
class OtherJob {
 public:
  OtherJob(const std::string& object, const std::vector<fs::path>& caches) {
    for (const fs::path& cache : caches) {
      stores_.push_back(std::make_unique<cache::Store>(cache));
      locks_.push_back(
          std::make_unique<cache::ObjectLock>(stores_.back()->lock(object, FileSystem::LockKind::exclusive)));
    }
  }
  /// In a node's process: closes the inherited locks.
  void forget() const {
    for (const auto& lock : locks_) ::close(lock->fd());
  }
  void end() { locks_.clear(); }

 private:
  std::vector<std::unique_ptr<cache::Store>> stores_;
  std::vector<std::unique_ptr<cache::ObjectLock>> locks_;
};

TEST_F(TransferNodes, NodeWhereAnotherJobCopiesMakesACopyOfItsOwnAndNobodyWaits) {
  const fs::path pack = make_large_pack("p", 300);
  const OtherJob other(put_alone(9, pack).object, {cache(1)});
  NodeChange node;
  node.before = [&] { other.forget(); };
  EXPECT_EQ(expect_good(put_on(3, pack, {{0, node}, {1, node}, {2, node}}), pack), size_of(pack));
}

TEST_F(TransferNodes, SourceThatAnotherJobCopiesOnAllNodesThatLackItIsWaitedForAndThenPutTogether) {
  const fs::path pack = make_large_pack("p", 300);
  const std::string object = put_alone(9, pack).object;
  for (const bool held : {false, true}) {
    SCOPED_TRACE(held);
    for (int node = 0; node < 3; ++node) FileSystem::real().remove_all(cache(node));
    std::vector<fs::path> caches{cache(0), cache(1), cache(2)};
    if (held) {
      put_alone(2, pack);
      caches.pop_back();
    }
    OtherJob other(object, caches);
    std::map<int, NodeChange> changes;
    for (const int node : {0, 1, 2}) {
      changes[node].before = [&] { other.forget(); };
      changes[node].options = [this, held, node](PutOptions& options) {
        options.on.waiting = [=, this](const std::string&) {
          write(fmt::format("waits{}{}", node, held), "");
        };
      };
    }
    start(3, pack, changes);
    EXPECT_TRUE(wait_for([&] {
      return fs::exists(folder_ / fmt::format("waits0{}", held)) &&
             fs::exists(folder_ / fmt::format("waits1{}", held));
    }));
    other.end();
    EXPECT_LE(expect_good(finish(), pack), held ? fs::file_size(pack / pack::kIndexName) : size_of(pack));
  }
}

/// Authenticates two ends with each other. Returns the error of the asking end, or "".
std::string handshake(const std::string& key, const std::string& step) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail_errno("socketpair");
  std::thread server([&] {
    try {
      PeerLink link(UniqueFd(ends[0]), PeerLink::Role::server, "secret", "7.0", {});
      link.handshake(0);
      link.receive(PeerTimeouts().quiet);
    } catch (const PeerError&) {
      // It closes the connection.
    }
  });
  std::string thrown;
  try {
    PeerLink link(UniqueFd(ends[1]), PeerLink::Role::client, key, step, {});
    EXPECT_EQ(link.handshake(1), 0U);
  } catch (const PeerError& error) {
    thrown = error.what();
  }
  server.join();
  return thrown;
}

TEST(PeerLink, OnlyNodesWithTheKeyOfTheStepAreAccepted) {
  EXPECT_EQ(handshake("secret", "7.0"), "");
  EXPECT_NE(handshake("guessed", "7.0"), "");
  EXPECT_NE(handshake("secret", "8.0"), "") << "another step's";
}

TEST(Exchange, UnauthenticatedConnectionsThatTakeAllDescriptorsShutNobodyOut) {
  EXPECT_EQ(staging_test::in_child([] {
              rlimit few{};
              ::getrlimit(RLIMIT_NOFILE, &few);
              const rlim_t many = few.rlim_cur;
              few.rlim_cur = 64;
              ::setrlimit(RLIMIT_NOFILE, &few);
              Exchange exchange({.key = "secret", .step = "7.0", .node_id = 0, .chunk_bytes = 4096});
              std::array<int, 2> pipe{};
              if (::pipe(pipe.data()) != 0) fail_errno("pipe");
              const pid_t unauthenticated = ::fork();
              if (unauthenticated == 0) {
                few.rlim_cur = many;
                ::setrlimit(RLIMIT_NOFILE, &few);
                std::vector<UniqueFd> held;
                for (int i = 0; i < 300; ++i) {
                  held.push_back(connect_to({"127.0.0.1"}, exchange.port(), seconds(1), "it"));
                }
                ::close(pipe[1]);
                ::pause();
              }
              ::close(pipe[1]);
              char byte = 0;
              (void)!::read(pipe[0], &byte, 1);
              std::string failed;
              try {
                exchange.connect({.hosts = {"127.0.0.1"}, .port = exchange.port()});
              } catch (const PeerError& error) {
                failed = error.what();
              }
              ::kill(unauthenticated, SIGKILL);
              ::waitpid(unauthenticated, nullptr, 0);
              if (!failed.empty()) fail("a peer was shut out: {}", failed);
            }),
            0);
}

}  // namespace
}  // namespace lockstep::transfer
