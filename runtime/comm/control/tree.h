// The connections of the control channel. Each rank is connected to the first rank of its node over a local
// socket, and the first rank of each node to rank 0 over TCP, so that a rank has at most as many connections
// as its node has ranks and the job has nodes.
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

struct Tree {
  Roster roster;
  int rank = 0;
  int parent = -1;  ///< rank; -1 at the top of the tree
  Key node_key{};   ///< a secret of the ranks of this node
  std::optional<Connection> up;
  std::vector<Child> down;
};

/// If rank 0 cannot give a verdict, each rank gives its own after this time. The times differ, so that usually only one
/// rank prints.
std::chrono::milliseconds verdict_delay(const Tree& tree);

/// All ranks call it together. Returns nullopt on all of them if the ranks of some node cannot connect. If
/// only the nodes cannot, each node gets its own tree. Rank 0 prints the reason. Throws only what
/// `all_gather` does.
std::optional<Tree> build_tree(const Place& place, const AllGather& all_gather);

}  // namespace lockstep::comm::control
