// Which node reads which chunk when connections break and nodes are lost, in every order of up to three
// such failures between four nodes. The test uses the real ChunkSchedule, and copies of what
// ChunkFetcher and Exchange do with its answers. Lists replace the sockets, and a random order replaces
// time. In the end each node must have each chunk, and the source must not be read more often than
// necessary.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "staging/transfer/exchange/chunk_schedule.h"

namespace lockstep::transfer {
namespace {

constexpr std::uint32_t kNodes = 4;

struct Line {
  enum Kind { get, idle, chunk, elsewhere } kind = get;
  std::size_t number = 0;  ///< of the chunk
};

struct Connection {
  std::deque<Line> to_server, to_asker;
  std::vector<std::size_t> waiting;  ///< chunks that the server has not answered for yet
  bool broken = false;               ///< nobody receives the answers any more
};

/// State of a ChunkFetcher.
struct Fetcher {
  std::shared_ptr<Connection> connection = std::make_shared<Connection>();
  std::vector<std::size_t> asked;
  bool said_idle = false;
  bool reconnected = false;
  bool dead = false;
};

/// `from` loses its connection to `to`, or gives up `to` at once; or `to` dies, and all others lose it one
/// after the other.
struct Failure {
  enum Kind { breaks, given_up, dies } kind = breaks;
  std::uint32_t from = 0, to = 0;
};

class Model {
 public:
  struct Options {
    std::size_t chunks = 16;
    std::uint32_t holders = 0;  ///< the number of nodes, from the first, that have all chunks already
    bool slow = true;           ///< one node is slow, so that the others help it
  };

  Model(std::vector<Failure> failures, std::uint32_t seed, Options options)
      : failures_(std::move(failures)),
        random_(seed),
        options_(options),
        fail_every_(10 + options.chunks * (seed % 20)) {
    std::vector<std::uint32_t> nodes, holders;
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      nodes.push_back(node);
      if (node < options_.holders) holders.push_back(node);
    }
    for (const std::uint32_t node : nodes) {
      const bool holds = node < options_.holders;
      work_.push_back(std::make_unique<ChunkSchedule>(options_.chunks, ChunkOwners(nodes, holders), node,
                                                      kNodes, [&](std::size_t) { return !holds; }));
      for (std::size_t chunk = 0; holds && chunk < options_.chunks; ++chunk) has_[node].insert(chunk);
    }
    slow_ = options_.slow ? draw(kNodes) : kNodes;
    max_asked_ = 1 + draw(2);
  }

  /// Returns what is wrong in the end, or "".
  std::string run() {
    for (int step = 0; step < 200'000; ++step) {
      if (!failures_.empty() && draw(fail_every_) == 0) {
        fail_next();
        continue;
      }
      if (one_step()) continue;
      if (failures_.empty()) return outcome();
      fail_next();
    }
    return "it never ends";
  }
  std::size_t reads() const { return reads_; }
  std::size_t helped() const { return helped_; }

 private:
  std::uint32_t draw(std::size_t below) { return static_cast<std::uint32_t>(random_() % below); }

  std::string outcome() const {
    for (std::uint32_t node = 0; node < kNodes; ++node) {
      if (dead_.contains(node)) continue;
      for (std::size_t chunk = 0; chunk < options_.chunks; ++chunk) {
        if (!has_[node].contains(chunk))
          return "node " + std::to_string(node) + " waits for chunk " + std::to_string(chunk);
      }
      if (!work_[node]->finished()) return "node " + std::to_string(node) + " does not know that it is done";
    }
    return "";
  }

  // Takes a random one of the possible steps. Returns false if no step is possible.
  bool one_step() {
    const std::uint32_t count = kNodes * kNodes * 4;
    const std::uint32_t first = draw(count);
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t what = (first + i) % count;
      const std::uint32_t node = what % kNodes;
      if (!dead_.contains(node) && step_of(what / kNodes / kNodes, node, what / kNodes % kNodes)) return true;
    }
    // The slow node reads if nothing else is possible, and now and then.
    return slow_ < kNodes && !dead_.contains(slow_) && read(slow_);
  }

  bool step_of(std::uint32_t kind, std::uint32_t node, std::uint32_t other) {
    if (node == other) return kind < 2 && (node != slow_ || draw(20) == 0) && read(node);
    switch (kind) {
      case 0:
        return ask(node, other);
      case 1:
        return hear(node, other);
      case 2:
        return !dead_.contains(other) && serve(node, other, *fetchers_[other][node].connection);
      default:
        return serve_broken(node);
    }
  }

  // A thread that reads from the source: takes a chunk, or is done with it.
  bool read(std::uint32_t node) {
    if (reading_[node].empty() || draw(2) == 0) {
      if (const std::optional<std::size_t> chunk = work_[node]->take(node)) {
        reading_[node].push_back(*chunk);
        ++reads_;
        if (ChunkOwners({0, 1, 2, 3}, {}).owner(*chunk) != node) ++helped_;
        return true;
      }
      if (reading_[node].empty()) return false;
    }
    store(node, reading_[node].front());
    reading_[node].pop_front();
    return true;
  }

  void store(std::uint32_t node, std::size_t chunk) {
    EXPECT_TRUE(has_[node].insert(chunk).second) << "stored twice";
    work_[node]->done();
  }

  // ChunkFetcher::ask()
  bool ask(std::uint32_t node, std::uint32_t other) {
    Fetcher& fetcher = fetchers_[node][other];
    if (fetcher.dead || work_[node]->finished()) return false;
    const std::size_t before = fetcher.connection->to_server.size();
    if (!fetcher.said_idle && work_[node]->idle()) {
      fetcher.said_idle = true;
      fetcher.connection->to_server.push_back({Line::idle});
    }
    while (fetcher.asked.size() < max_asked_) {
      const std::optional<std::size_t> chunk = work_[node]->take(other);
      if (!chunk) break;
      fetcher.asked.push_back(*chunk);
      fetcher.connection->to_server.push_back({Line::get, *chunk});
    }
    return fetcher.connection->to_server.size() > before;
  }

  // ChunkFetcher::take_line()
  bool hear(std::uint32_t node, std::uint32_t other) {
    Fetcher& fetcher = fetchers_[node][other];
    if (fetcher.dead || fetcher.connection->to_asker.empty()) return false;
    const Line line = fetcher.connection->to_asker.front();
    fetcher.connection->to_asker.pop_front();
    std::erase(fetcher.asked, line.number);
    if (line.kind == Line::chunk) {
      store(node, line.number);
    } else {
      work_[node]->refused(line.number, other);
    }
    return true;
  }

  // Exchange::talk() and answer() of `node`, for `asker`.
  bool serve(std::uint32_t node, std::uint32_t asker, Connection& connection) {
    if (!connection.to_server.empty()) {
      const Line line = connection.to_server.front();
      connection.to_server.pop_front();
      if (line.kind == Line::get) {
        connection.waiting.push_back(line.number);
      } else {
        work_[node]->help_from(asker);
      }
      return true;
    }
    for (const std::size_t chunk : connection.waiting) {
      const bool here = has_[node].contains(chunk);
      if (!here && work_[node]->expects(chunk, asker)) continue;
      std::erase(connection.waiting, chunk);
      if (!connection.broken) connection.to_asker.push_back({here ? Line::chunk : Line::elsewhere, chunk});
      return true;
    }
    return false;
  }

  // Requests sent over a broken connection may be received later.
  bool serve_broken(std::uint32_t node) {
    for (auto& [server, asker, connection] : broken_) {
      if (server == node && draw(4) == 0 && serve(node, asker, *connection)) return true;
    }
    return false;
  }

  void fail_next() {
    const Failure failure = failures_.front();
    failures_.erase(failures_.begin());
    if (failure.kind == Failure::dies) {
      dead_.insert(failure.to);
      for (std::uint32_t node = 0; node < kNodes; ++node) {
        if (node != failure.to) failures_.insert(failures_.begin(), {Failure::given_up, node, failure.to});
      }
      std::shuffle(failures_.begin(), failures_.end(), random_);
      return;
    }
    if (dead_.contains(failure.from)) return;
    // ChunkFetcher::run() and give_up()
    Fetcher& fetcher = fetchers_[failure.from][failure.to];
    if (fetcher.dead) return;
    fetcher.connection->broken = true;
    broken_.emplace_back(failure.to, failure.from, fetcher.connection);
    fetcher.connection = std::make_shared<Connection>();
    ChunkSchedule& work = *work_[failure.from];
    fetcher.said_idle = false;
    fetcher.dead = failure.kind == Failure::given_up || fetcher.reconnected;
    if (fetcher.dead) work.give_up(failure.to);
    fetcher.reconnected = true;
    for (const std::size_t chunk : fetcher.asked) work.put_back(chunk, failure.to);
    fetcher.asked.clear();
  }

  std::vector<Failure> failures_;
  std::mt19937 random_;
  Options options_;
  std::size_t fail_every_;
  std::vector<std::unique_ptr<ChunkSchedule>> work_;
  std::array<std::array<Fetcher, kNodes>, kNodes> fetchers_;
  std::vector<std::tuple<std::uint32_t, std::uint32_t, std::shared_ptr<Connection>>> broken_;
  std::array<std::set<std::size_t>, kNodes> has_;
  std::array<std::deque<std::size_t>, kNodes> reading_;
  std::set<std::uint32_t> dead_;
  std::uint32_t slow_ = 0;
  std::size_t max_asked_ = 0;
  std::size_t reads_ = 0;
  std::size_t helped_ = 0;
};

std::vector<Failure> all_failures() {
  std::vector<Failure> all;
  for (std::uint32_t to = 0; to < kNodes; ++to) {
    all.push_back({Failure::dies, to, to});
    for (std::uint32_t from = 0; from < kNodes; ++from) {
      if (from == to) continue;
      all.push_back({Failure::breaks, from, to});
      all.push_back({Failure::given_up, from, to});
    }
  }
  return all;
}

TEST(ScheduleModel, WithoutFailuresTheSourceIsReadOnce) {
  std::size_t helped = 0;
  for (std::uint32_t seed = 0; seed < 2000; ++seed) {
    Model model({}, seed, {});
    ASSERT_EQ(model.run(), "") << seed;
    ASSERT_EQ(model.reads(), 16U) << seed;
    helped += model.helped();
  }
  EXPECT_GT(helped, 1000U) << "the others help a slow node";
}

TEST(ScheduleModel, IfSomeNodesHoldTheDataTheSourceIsNotRead) {
  for (std::uint32_t seed = 0; seed < 300; ++seed) {
    Model model({}, seed, {.holders = 1 + seed % 3});
    ASSERT_EQ(model.run(), "") << seed;
    ASSERT_EQ(model.reads(), 0U) << seed;
  }
}

TEST(ScheduleModel, IfOneOfFourNodesDiesAtAnyMomentAtMost30PercentAreReadAgain) {
  constexpr std::size_t kChunks = 200;
  std::size_t most = 0;
  for (std::uint32_t seed = 0; seed < 500; ++seed) {
    const std::uint32_t dies = seed % kNodes;
    Model model({{Failure::dies, dies, dies}}, seed, {.chunks = kChunks, .slow = false});
    ASSERT_EQ(model.run(), "") << seed;
    most = std::max(most, model.reads());
  }
  EXPECT_LE(most, kChunks * 13 / 10);
  EXPECT_GT(most, kChunks) << "some of the nodes died late enough";
}

TEST(ScheduleModel, InNoOrderOfThreeFailuresDoesANodeWaitForEver) {
  const std::vector<Failure> all = all_failures();
  std::uint32_t seed = 0;
  for (const Failure& first : all) {
    for (const Failure& second : all) {
      for (const Failure& third : all) {
        ++seed;
        const std::uint32_t holders = seed % 5 < 3 ? 0 : seed % 5 - 2;
        const std::string wrong = Model({first, second, third}, seed, {.holders = holders}).run();
        ASSERT_EQ(wrong, "") << seed;
      }
    }
  }
}

TEST(ChunkOwners, OwnEqualSharesAndSucceedToEqualPartsOfThem) {
  for (const std::uint32_t count : {1U, 2U, 3U, 4U, 7U, 16U}) {
    SCOPED_TRACE(count);
    std::vector<std::uint32_t> nodes(count);
    std::iota(nodes.begin(), nodes.end(), 10);
    const ChunkOwners owners(nodes, {});
    std::map<std::uint32_t, std::size_t> owned;
    std::map<std::pair<std::uint32_t, std::uint32_t>, std::size_t> succeeded;
    const std::size_t rounds = 5 * std::max(1U, count - 1);
    for (std::size_t chunk = 0; chunk < rounds * count; ++chunk) {
      ++owned[owners.owner(chunk)];
      ++succeeded[{owners.owner(chunk), owners.successor(chunk)}];
      EXPECT_TRUE(count == 1 || owners.owner(chunk) != owners.successor(chunk));
    }
    EXPECT_EQ(owned.size(), count);
    for (const auto& [node, chunks] : owned) EXPECT_EQ(chunks, rounds);
    for (const auto& [pair, chunks] : succeeded) EXPECT_EQ(chunks, 5U);
  }
}

TEST(ChunkOwners, ASingleHolderIsSucceededByAllOthersInTurn) {
  const ChunkOwners owners({5, 2, 3, 9}, {5});
  for (std::size_t chunk = 0; chunk < 9; ++chunk) {
    EXPECT_EQ(owners.owner(chunk), 5U);
    EXPECT_EQ(owners.successor(chunk), (std::array{2U, 3U, 9U})[chunk % 3]);
  }
}

TEST(ChunkOwners, SeveralHoldersSucceedEachOther) {
  const ChunkOwners owners({5, 2, 3, 9}, {3, 9});
  for (std::size_t chunk = 0; chunk < 9; ++chunk) {
    EXPECT_EQ(owners.owner(chunk), chunk % 2 == 0 ? 3U : 9U);
    EXPECT_EQ(owners.successor(chunk), chunk % 2 == 0 ? 9U : 3U);
  }
}

/// Node `self` of two or three, which needs all of `chunks`.
ChunkSchedule schedule_of(std::uint32_t self, std::uint32_t count, std::size_t chunks) {
  return {chunks, ChunkOwners(count == 2 ? std::vector{0U, 1U} : std::vector{0U, 1U, 2U}, {}), self, count,
          [](std::size_t) { return true; }};
}

TEST(ChunkSchedule, TheSuccessorReadsAChunkForWhichTheOwnerAsks) {
  ChunkSchedule schedule = schedule_of(1, 2, 6);
  EXPECT_TRUE(schedule.expects(2, 0));
  for (const std::size_t chunk : {1U, 2U, 3U, 5U}) EXPECT_EQ(schedule.take_own(), chunk);
  for (const std::size_t chunk : {0U, 4U}) EXPECT_EQ(schedule.take(0), chunk);
  EXPECT_TRUE(schedule.idle());
}

TEST(ChunkSchedule, TheOwnerAsksAnIdleSuccessorForItsLastChunksAndSendsTheOthersThere) {
  ChunkSchedule schedule = schedule_of(0, 3, 12);  // owns 0, 3, 6 and 9; 0 and 6 are succeeded by 1
  schedule.help_from(1);
  for (const std::size_t chunk : {1U, 4U, 7U, 10U, 6U}) EXPECT_EQ(schedule.take(1), chunk);
  EXPECT_FALSE(schedule.expects(6, 2));
  EXPECT_TRUE(schedule.expects(9, 2));
  schedule.give_up(1);
  schedule.put_back(6, 1);
  for (const std::size_t chunk : {0U, 3U, 6U, 9U}) EXPECT_EQ(schedule.take_own(), chunk);
}

TEST(ChunkSchedule, ReadersEndWhenAllChunksAreThere) {
  ChunkSchedule schedule = schedule_of(0, 2, 2);
  EXPECT_EQ(schedule.take_own(), 0U);
  EXPECT_EQ(schedule.take(1), 1U);
  for (int i = 0; i < 2; ++i) schedule.done();
  EXPECT_TRUE(schedule.finished());
  EXPECT_FALSE(schedule.take_own());
}

}  // namespace
}  // namespace lockstep::transfer
