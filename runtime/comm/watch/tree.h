// The connections of the control channel: the ranks of a node to the node's first rank, over a local socket,
// and the nodes' first ranks to rank 0, over TCP. So nobody holds more connections than there are ranks on a
// node or nodes.
//
// Threads: none of its own; built by the main thread.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/watch/link.h"
#include "runtime/comm/watch/sockets.h"
#include "runtime/comm/watch/status.h"

namespace lockstep::comm::watch {

/// Puts everyone's `mine` of so many bytes into `all`, in rank order. How ranks find each other at first.
using AllGather = std::function<void(const void* mine, std::size_t bytes, void* all)>;

struct Child {
  int rank = 0;
  Link link;
};

struct Tree {
  Roster roster;
  int rank = 0;
  int parent = -1;  ///< rank; -1: nobody is above this one
  Key node_key{};   ///< what the ranks of this node, and nobody else, have in common
  std::optional<Link> up;
  std::vector<Child> down;
};

/// All ranks call it together, and it ends alike on all of them: nothing where there can be no channel. Where
/// only the nodes do not reach each other, each has a channel of its own. Rank 0 says so on standard error.
/// Throws only what `all_gather` does.
std::optional<Tree> grow_tree(const Place& place, const AllGather& all_gather);

}  // namespace lockstep::comm::watch
