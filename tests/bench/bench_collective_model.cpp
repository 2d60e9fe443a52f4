// Predicts the time of an all-reduce among thousands of nodes: plays the communicator's own schedules
// (runtime/comm/cpu/node_schedule.h) for all nodes with a given latency, bandwidth and cost of a message, segment by
// segment, as the communicator does. Algorithms:
//
//   schedule   the communicator's
//   pairwise   reduce-scatter and all-gather over all nodes, one message after the other
//
// Every node has one link in each direction; a link serves messages in the order in which they were posted. Of a node's
// ranks each exchanges one slice, and they share the link. The sums on the node itself are not included.
#include <algorithm>
#include <cstdint>
#include <map>
#include <queue>
#include <string>
#include <vector>

#include "common/error.h"
#include "common/tool.h"
#include "common/units.h"
#include "runtime/comm/cpu/node_schedule.h"

namespace lockstep::bench {
namespace {

using comm::DataType;
using comm::cpu::ExchangePlan;
using comm::cpu::grid_of;
using comm::cpu::NodeGrid;
using comm::cpu::Round;

struct Model {
  std::vector<int> nodes{2, 4, 8, 16, 64, 256, 512, 1000};
  int ranks_per_node = 8;
  std::vector<std::string> sizes{"4K", "64K", "1M", "25M"};
  double latency_us = 10;
  double gbit = 100;      // per second, of a node's link
  double message_us = 1;  // of a processor, to send or to receive a message
  double sum_gbyte = 8;   // per second, that a rank adds up
};

using Schedules = std::vector<std::vector<Round>>;  // of all nodes

// Plays the exchange of one slice by one rank of each node.
class Player {
 public:
  /// `window`: segments that are on the wire at the same time.
  Player(const Model& model, Schedules schedules, std::size_t segments, std::size_t window)
      : latency_(model.latency_us * 1e-6),
        // The slices of a node's ranks share its link.
        per_byte_(8e-9 / model.gbit * model.ranks_per_node),
        message_(model.message_us * 1e-6),
        sum_per_byte_(1e-9 / model.sum_gbyte),
        schedules_(std::move(schedules)),
        segments_(segments),
        window_(std::min(window, segments)),
        nodes_(schedules_.size()) {
    find_targets();
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      nodes_[node].progress.assign(segments, {.rounds = std::vector<RoundState>(schedules_[node].size())});
    }
  }

  /// Seconds until the last node has everything.
  double play() {
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      for (std::size_t segment = 0; segment < window_; ++segment) push({.node = node, .segment = segment});
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      if (event.bytes == 0) {
        begin_round(event);
      } else {
        arrive(event);
      }
    }
    double end = 0;
    for (std::size_t node = 0; node < nodes_.size(); ++node) {
      if (nodes_[node].done != segments_) fail("node {} waits for ever", node);
      end = std::max(end, nodes_[node].end);
    }
    return end;
  }

 private:
  struct Event {
    double at = 0;
    std::uint64_t order = 0;  // of events at the same time
    std::size_t node = 0;
    std::size_t segment = 0;
    std::size_t round = 0;
    std::size_t bytes = 0;  // of the message that arrives; 0: the node begins the round
    bool operator<(const Event& other) const { return at != other.at ? at > other.at : order > other.order; }
  };
  struct RoundState {
    std::size_t arrived = 0;
    double complete_at = 0;  // so far: when the last message had arrived or left
    bool begun = false;
  };
  struct Progress {
    std::vector<RoundState> rounds;
  };
  struct Node {
    double processor_free = 0;
    double out_free = 0;
    double in_free = 0;
    std::size_t done = 0;  // segments
    double end = 0;
    std::vector<Progress> progress;  // of each segment
  };

  // The round of the receiver for each message: the k-th message to a node is the k-th that it awaits from the sender.
  void find_targets() {
    std::map<std::pair<int, int>, std::vector<std::size_t>> awaited;
    for (std::size_t node = 0; node < schedules_.size(); ++node) {
      for (std::size_t round = 0; round < schedules_[node].size(); ++round) {
        for (const auto& message : schedules_[node][round].receives) {
          awaited[{message.peer, static_cast<int>(node)}].push_back(round);
        }
      }
    }
    std::map<std::pair<int, int>, std::size_t> sent;
    targets_.resize(schedules_.size());
    for (std::size_t node = 0; node < schedules_.size(); ++node) {
      for (const Round& round : schedules_[node]) {
        auto& targets = targets_[node].emplace_back();
        for (const auto& message : round.sends) {
          const std::pair<int, int> pair{static_cast<int>(node), message.peer};
          targets.push_back(awaited.at(pair).at(sent[pair]++));
        }
      }
    }
  }

  void push(Event event) {
    event.order = next_order_++;
    events_.push(event);
  }

  void begin_round(const Event& event) {
    Node& node = nodes_[event.node];
    const Round& round = schedules_[event.node][event.round];
    double now = std::max(event.at, node.processor_free);
    double left = now;
    for (std::size_t i = 0; i < round.sends.size(); ++i) {
      now += message_;
      left = std::max(now, node.out_free) + static_cast<double>(round.sends[i].count) * per_byte_;
      node.out_free = left;
      push({.at = left + latency_,
            .node = static_cast<std::size_t>(round.sends[i].peer),
            .segment = event.segment,
            .round = targets_[event.node][event.round][i],
            .bytes = round.sends[i].count});
    }
    node.processor_free = now;
    RoundState& state = node.progress[event.segment].rounds[event.round];
    state.begun = true;
    state.complete_at = std::max({state.complete_at, left, now});
    end_round_if_complete(event.node, event.segment, event.round);
  }

  void arrive(const Event& event) {
    Node& node = nodes_[event.node];
    // Messages of several nodes come one after the other; the sender's time includes that of an idle link.
    node.in_free = std::max(event.at, node.in_free + static_cast<double>(event.bytes) * per_byte_);
    RoundState& state = node.progress[event.segment].rounds[event.round];
    ++state.arrived;
    state.complete_at = std::max(state.complete_at, node.in_free);
    end_round_if_complete(event.node, event.segment, event.round);
  }

  void end_round_if_complete(std::size_t which, std::size_t segment, std::size_t number) {
    Node& node = nodes_[which];
    const RoundState& state = node.progress[segment].rounds[number];
    const Round& round = schedules_[which][number];
    if (!state.begun || state.arrived < round.receives.size()) return;
    double now = std::max(state.complete_at, node.processor_free);
    for (const auto& message : round.receives) {
      now += message_;
      if (round.reduces) now += static_cast<double>(message.count) * sum_per_byte_;
    }
    node.processor_free = now;
    if (number + 1 < schedules_[which].size()) {
      push({.at = now, .node = which, .segment = segment, .round = number + 1});
      return;
    }
    node.end = std::max(node.end, now);
    if (++node.done + window_ <= segments_)
      push({.at = now, .node = which, .segment = node.done + window_ - 1});
  }

  double latency_;
  double per_byte_;
  double message_;
  double sum_per_byte_;
  Schedules schedules_;
  std::vector<std::vector<std::vector<std::size_t>>> targets_;  // by node, round, message
  std::size_t segments_;
  std::size_t window_;
  std::vector<Node> nodes_;
  std::priority_queue<Event> events_;
  std::uint64_t next_order_ = 0;
};

Schedules pairwise(int nodes, std::size_t bytes) {
  const std::size_t part = std::max<std::size_t>(1, bytes / static_cast<std::size_t>(nodes));
  Schedules all(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node) {
    for (const bool reduces : {true, false}) {
      for (int step = 1; step < nodes; ++step) {
        Round round;
        round.reduces = reduces;
        round.sends.push_back({(node + step) % nodes, 0, part});
        round.receives.push_back({(node - step + nodes) % nodes, 0, part});
        all[static_cast<std::size_t>(node)].push_back(std::move(round));
      }
    }
  }
  return all;
}

void print(const Model& model, int nodes, std::size_t bytes, const char* algorithm,
           const Schedules& schedules, double seconds) {
  std::size_t rounds = 0;
  std::size_t peers = 0;
  for (const auto& of_node : schedules) {
    rounds = std::max(rounds, of_node.size());
    std::vector<int> names;
    for (const Round& round : of_node) {
      for (const auto& message : round.sends) names.push_back(message.peer);
    }
    std::sort(names.begin(), names.end());
    const auto distinct = static_cast<std::size_t>(std::unique(names.begin(), names.end()) - names.begin());
    peers = std::max(peers, distinct);
  }
  Tool::print({{"bench", "collective_model"},
               {"nodes", nodes},
               {"ranks_per_node", model.ranks_per_node},
               {"bytes", bytes},
               {"algorithm", algorithm},
               {"latency", model.latency_us * 1e-6},
               {"link_bandwidth", model.gbit * 1e9 / 8},
               {"rounds", rounds},
               {"peers", peers},
               {"seconds", seconds}});
}

void predict(const Model& model, int nodes, std::size_t bytes, bool with_pairwise) {
  const std::size_t slice = std::max<std::size_t>(1, bytes / static_cast<std::size_t>(model.ranks_per_node));
  const NodeGrid grid = grid_of(nodes);
  const ExchangePlan plan = plan_of(grid, slice,
                                    {.latency = (model.latency_us + model.message_us) * 1e-6,
                                     .per_byte = 8e-9 / model.gbit * model.ranks_per_node,
                                     .sum_per_byte = 1e-9 / model.sum_gbyte});
  const std::size_t segment = std::min(slice, plan.segment_bytes);
  const std::size_t segments = (slice + segment - 1) / segment;
  const std::size_t window =
      std::clamp<std::size_t>(comm::cpu::kWindowBytes / segment, 1, comm::cpu::kWindowSegments);
  Schedules schedules;
  for (int node = 0; node < nodes; ++node) {
    schedules.push_back(schedule_of(grid, node, segment, plan.form, DataType::u8));
  }
  print(model, nodes, bytes, "schedule", schedules, Player(model, schedules, segments, window).play());
  if (with_pairwise) {
    const Schedules flat = pairwise(nodes, slice);
    print(model, nodes, bytes, "pairwise", flat, Player(model, flat, 1, 1).play());
  }
}

}  // namespace
}  // namespace lockstep::bench

int main(int argc, char** argv) {
  lockstep::Tool tool("bench_collective_model", "Predicts the time of an all-reduce between nodes.");
  lockstep::bench::Model model;
  bool pairwise = false;
  tool.app().add_option("--nodes", model.nodes)->delimiter(',')->check(CLI::Range(2, 65536));
  tool.app().add_option("--ranks-per-node", model.ranks_per_node)->check(CLI::PositiveNumber);
  tool.app().add_option("--sizes", model.sizes, "Of the buffer, as 4K,25M")->delimiter(',');
  tool.app().add_option("--latency-us", model.latency_us)->check(CLI::NonNegativeNumber);
  tool.app().add_option("--gbit", model.gbit, "Of a node's link")->check(CLI::PositiveNumber);
  tool.app()
      .add_option("--message-us", model.message_us, "Processor time of a message")
      ->check(CLI::NonNegativeNumber);
  tool.app()
      .add_option("--sum-gbyte", model.sum_gbyte, "That a rank adds up in a second")
      ->check(CLI::PositiveNumber);
  tool.app().add_flag("--pairwise", pairwise, "Also one message after the other");
  return tool.run(argc, argv, [&] {
    for (const int nodes : model.nodes) {
      for (const auto& size : model.sizes) {
        lockstep::bench::predict(model, nodes, lockstep::parse_bytes(size), pairwise);
      }
    }
  });
}
