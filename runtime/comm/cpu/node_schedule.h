// The schedule of an all-reduce between nodes: for each round, the elements that a node sends to others and receives
// from them. It is pure computation, so tests and the model (tests/bench) play the communicator's schedule for any
// number of nodes.
//
// The nodes form a grid of f1 × f2 × … nodes. In the slices form, dimension after dimension, the nodes that differ
// in that digit only divide the elements that they still have among themselves and reduce them (reduce-scatter);
// then the dimensions are gathered in reverse order. All messages of a dimension are posted at once: 2 rounds for
// each dimension, and 2 (1 - 1/N) B bytes for N nodes and B bytes. In the whole form, for small buffers, the nodes
// of a dimension exchange all elements: half the rounds, more bytes. Both forms add the operands in the order of the
// digits, so an element's order of summation depends on the number of nodes alone.
//
// A number of nodes without small factors leaves surplus nodes. Each joins one group of the first dimension: it
// sends its elements to the group's nodes, and gets the results from them.
//
// Sources: Rabenseifner, "Optimization of Collective Reduction Operations" (ICCS 2004), generalised to mixed radices.
//
// Threads: values, no shared state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::cpu {

/// The arrangement of the nodes. The digits of a node are node % f1, node / f1 % f2, …, so neighbouring nodes form
/// the groups of the first dimension, which moves more bytes than the later ones.
struct NodeGrid {
  int nodes = 1;
  std::vector<int> factors;  ///< their product is regular()

  int regular() const;
  int surplus() const { return nodes - regular(); }
};

/// The grid with the shortest time for small messages: at most about 30 peers and 20 rounds for 1,000 nodes.
NodeGrid grid_of(int nodes);

enum class ScheduleForm : std::uint8_t { whole, slices };

struct Round {
  struct Message {
    int peer = 0;  ///< node
    std::size_t begin = 0;
    std::size_t count = 0;  ///< elements
  };
  std::vector<Message> sends;
  std::vector<Message> receives;  ///< if the round reduces: in the order of summation
  bool reduces = false;
  // If the round reduces: this node's elements, which are summed after `before` of the received ones.
  std::size_t begin = 0;
  std::size_t count = 0;
  std::size_t before = 0;
};

/// The rounds of `node` for `count` elements. Messages have at least one element.
std::vector<Round> schedule_of(const NodeGrid& grid, int node, std::size_t count, ScheduleForm form,
                               DataType type);

/// The rounds and peers of a schedule.
NetworkUse use_of(const std::vector<Round>& rounds);

// Operations in which every node owns a block of `count` elements: reduce-scatter is the first half of an all-reduce,
// all-gather the second one. The blocks are packed in the order of block_of().

/// The grid without surplus nodes. A large prime factor makes a large group.
NodeGrid full_grid_of(int nodes);
/// The place of the node's block among the packed ones.
int block_of(const NodeGrid& grid, int node);
std::vector<Round> reduce_scatter_schedule_of(const NodeGrid& grid, int node, std::size_t count);
std::vector<Round> all_gather_schedule_of(const NodeGrid& grid, int node, std::size_t count);

constexpr std::size_t kShortOperation = std::size_t{256} << 10;
constexpr std::size_t kLongestMessage = std::size_t{1} << 20;
/// The first data of an operation travels with its request if it is not longer; otherwise in a message more.
constexpr std::size_t kMaxRiding = std::size_t{32} << 10;

/// What the network and this processor need, in seconds.
struct NetworkCost {
  double latency = 10e-6;            ///< of a message
  double per_byte = 1.0 / 12.5e9;    ///< on the wire
  double sum_per_byte = 1.0 / 20e9;  ///< to add a received byte
  // The lengths of the fastest messages, of operations up to kShortOperation and of longer ones.
  std::size_t short_message_bytes = kLongestMessage;
  std::size_t message_bytes = kLongestMessage;
};

/// How a buffer is exchanged.
struct ExchangePlan {
  ScheduleForm form = ScheduleForm::slices;
  std::size_t segment_bytes = 0;
};

/// Of the forms, the one that takes less time. Segments are short enough that one is summed while another is on
/// the wire, and long enough that a message's latency does not matter.
ExchangePlan plan_of(const NodeGrid& grid, std::size_t bytes, const NetworkCost& cost);

/// At most so many bytes and segments are on the wire at the same time (one segment may be larger).
constexpr std::size_t kWindowBytes = std::size_t{8} << 20;
constexpr std::size_t kWindowSegments = 32;

}  // namespace lockstep::comm::cpu
