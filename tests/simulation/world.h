// The simulated nodes of a ring and what happens to them (ring_world.h). world.cpp plays the events, world_set_up.cpp prepares a
// run and judges its end.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <queue>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "staging/transfer/exchange/ring_node.h"
#include "tests/simulation/ring_world.h"

namespace lockstep::simulation {

using transfer::ListRelay;
using transfer::PeerWatch;
using transfer::RingNode;

inline constexpr double kNever = 1e30;

/// A chunk on a node's disk.
enum class Bytes : std::uint8_t { none, right, wrong };

struct Node {
  std::uint32_t place = 0;
  bool running = true;
  double stopped_until = 0;
  std::string line;  // why it failed
  double finished_at = kNever;

  ListRelay lists{{}};
  std::optional<RingNode> ring;
  PeerWatch watch{{}};
  bool lost = false;
  bool connected = false;
  std::uint64_t generation = 0;  // of its connection to the predecessor
  std::uint64_t asked = 0;       // the generation that its successor uses; 0: none
  bool asked_chunks = false;
  std::vector<std::byte> wanted;  // by the successor
  bool sending = false;
  double sent_at = 0;
  int reading = 0;
  bool reads_list = false;
  std::size_t storing = 0;
  double disk_free = 0;
  std::deque<std::function<void()>> inbox;  // chunks that wait for memory

  // How this node is.
  double reader = 0;
  double disk = 0;
  double prepare = 0;
  bool no_source = false;
  std::vector<Bytes> disk_bytes;
  std::size_t stored = 0;

  std::uint64_t sent = 0;        // chunks
  std::uint64_t sent_again = 0;  // that were on the way when a connection broke
  std::set<std::size_t> on_the_way;
};

class World {
 public:
  explicit World(const WorldOptions& options) : options_(options), random_(options.seed) {}

  WorldEnd run();

 private:
  using Action = std::function<void()>;
  struct Event {
    double at;
    std::uint64_t number;
    Action action;
    bool operator<(const Event& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };

  void at(double when, Action action) { events_.push({when, ++number_, std::move(action)}); }
  void after(double seconds, Action action) { at(now_ + seconds, std::move(action)); }
  /// Runs the action on a node when it runs; never if it is dead.
  void on(Node& node, double seconds, const Action& action) {
    after(seconds, [this, &node, action] {
      if (!node.running) return;
      if (node.stopped_until > now_)
        return at(node.stopped_until, [&node, action] {
          if (node.running) action();
        });
      action();
    });
  }
  double uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(random_);
  }
  bool chance(double p) { return options_.faults && uniform(0, 1) < p; }
  std::uint32_t any(std::uint32_t count) {
    return std::uniform_int_distribution<std::uint32_t>(0, count - 1)(random_);
  }
  bool planted(Planted fault) const { return options_.planted == fault; }

  Node& before(const Node& node) { return nodes_[(node.place + nodes_.size() - 1) % nodes_.size()]; }
  Node& next(const Node& node) { return nodes_[(node.place + 1) % nodes_.size()]; }
  bool reachable(const Node& from, const Node& to) const {
    return to.running && from.running &&
           !(now_ >= away_from_ && now_ < away_until_ &&
             away_.contains(from.place) != away_.contains(to.place));
  }

  void set_up();
  void begin(Node& node);
  void make_lists(Node& node);
  void lists_changed(Node& node);
  void prepare(Node& node);
  void tick(Node& node);
  void connect(Node& node);
  void subscribe(Node& node);
  void lose(Node& node);
  void end(Node& node, const std::string& line);
  void pump_reads(Node& node);
  void pump_sends(Node& node);
  bool can_deliver(Node& node, std::uint64_t generation, const Action& again);
  void deliver_piece(Node& node, std::uint64_t generation, const ListRelay::Piece& piece);
  void deliver(Node& node, std::uint64_t generation, std::size_t chunk, Bytes bytes, bool idle);
  void send_changes(Node& node);
  void hand_over(Node& node);
  void take_over(Node& node, const std::vector<std::size_t>& chunks);
  void arrive(Node& node, std::uint64_t generation, std::size_t chunk, Bytes bytes, bool idle);
  void take(Node& node, std::size_t chunk, Bytes bytes);
  bool holds(std::uint32_t place, std::size_t source) const;
  void store(Node& node, std::size_t chunk, Bytes bytes);
  bool settled() const;
  WorldEnd judge();

  WorldOptions options_;
  std::mt19937_64 random_;
  std::priority_queue<Event> events_;
  std::uint64_t number_ = 0;
  double now_ = 0;
  std::vector<Node> nodes_;
  std::vector<std::uint32_t> readers_;
  std::vector<std::size_t> source_of_;                      // by chunk
  std::vector<std::size_t> file_of_;                        // by chunk; files are counted through all sources
  std::set<std::pair<std::uint32_t, std::size_t>> opened_;  // node, file
  std::size_t unheld_ = 0;
  std::set<std::uint32_t> holders_;
  std::set<std::uint32_t> away_;  // nodes that the others cannot reach for a while
  double away_from_ = kNever;
  double away_until_ = kNever;
  double source_free_ = 0;
  std::uint64_t read_ = 0;     // chunks from the source
  std::uint64_t allowed_ = 0;  // to be read beyond once
  std::size_t given_up_ = 0;   // nodes that are well
};

}  // namespace lockstep::simulation
