// The connections of the control channel. Each rank is connected to the first rank of its node over a local socket. The
// first ranks form a tree over TCP. A node has up to 32 nodes below it: node 0 has nodes 1 to 32, node 1 has 33 to 64. So
// 1,056 nodes are two levels below rank 0.
//
// Threads: the main thread builds the tree.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/control/connection.h"
#include "runtime/comm/control/sockets.h"
#include "runtime/comm/control/status.h"

namespace lockstep::comm::control {

/// Puts `mine` of every rank into `all`, in rank order. Ranks find each other with it.
using AllGather = std::function<void(const void* mine, std::size_t bytes, void* all)>;

struct Child {
  int rank = 0;
  Connection connection;
};

constexpr int kNodesBelow = 32;

/// The node above; -1 for node 0.
constexpr int node_above(int node) {
  return node == 0 ? -1 : (node - 1) / kNodesBelow;
}

/// The nodes that are connected to this one from below.
std::vector<int> nodes_below(int node, int nodes);

struct Tree {
  Roster roster;
  int rank = 0;
  int parent = -1;  ///< rank; -1 at the top of the tree
  Key node_key{};   ///< a secret of the ranks of this node
  std::optional<Connection> up;
  std::vector<Child> down;
};

/// The ranks of whose state `child` of this rank tells: itself, or all ranks of its node and of the nodes below.
std::vector<int> ranks_behind(const Tree& tree, int child);

/// How long a rank waits for the answers of those below it: the longer, the nearer it is to rank 0.
std::chrono::milliseconds answer_time(const Tree& tree);

/// If rank 0 cannot give a verdict, each rank gives its own after this time. The times differ, so that usually only one
/// rank prints.
std::chrono::milliseconds verdict_delay(const Tree& tree);

/// All ranks call it together. Returns nullopt on all of them if the ranks of some node cannot connect. If
/// only the nodes cannot, each node gets its own tree. Rank 0 prints the reason. Throws only what
/// `all_gather` does.
std::optional<Tree> build_tree(const RankInfo& place, const AllGather& all_gather);

}  // namespace lockstep::comm::control
