// put() on several nodes at once without Slurm. The first node runs the rendezvous through which all of them
// agree.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "staging/transfer/exchange/peer_link.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// The port of the first node's rendezvous, unless `nodes` gives another.
inline constexpr int kRendezvousPort = 25971;

struct NodesOptions {
  /// "HOST" or "HOST:PORT" of each. The first one's port is the rendezvous, by default kRendezvousPort; the
  /// port of any other node is where it serves chunks, by default any free one.
  std::vector<std::string> nodes;
  std::uint32_t node_id = 0;  ///< this node's place among them
  std::string key;            ///< the same on all nodes, and secret
  int wait_seconds = 60;      ///< until the first node starts, and from then until the last
  /// For a system call at the source or at the disk; 0: default_call_timeout().
  std::chrono::milliseconds call_timeout{0};
  PeerTimeouts peer_timeouts;
  /// Ends the process. Called from another thread while this one works, if a node has failed, if a call hangs
  /// on this node, or if the first node is lost.
  std::function<void(const std::string& why)> stop;
};

/// As put(), with all nodes agreeing: if one fails, all do. Returns in a child process; the calling process
/// waits for it and ends with its exit code. Call it while the process has one thread. Throws UsageError for
/// a list of nodes that cannot work.
std::vector<PutResult> put_on_nodes(const std::vector<std::string>& sources, PutOptions options,
                                    const NodesOptions& nodes);

}  // namespace lockstep::transfer
