// put() on several nodes at once without Slurm: the first node's address is where all of them meet.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "staging/transfer/exchange/exchange_link.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// Where nodes meet on the first of them unless its port is given.
inline constexpr int kMeetingPort = 25971;

struct NodesOptions {
  /// "HOST" or "HOST:PORT" of each. On the first one's port all of them meet, kMeetingPort where there is
  /// none; of the others it is any free one unless it is given.
  std::vector<std::string> nodes;
  std::uint32_t node_id = 0;  ///< which of them this is
  std::string key;            ///< the same on all nodes, and secret
  int wait_seconds = 60;      ///< for the first node to be there, and for the last one after it
  /// For a call at the source, or at the disk; 0: as HangWatch says.
  std::chrono::milliseconds source_patience{0};
  PeerPatience peer_patience;
  /// A node has failed, this one with a call that hangs, or the first is lost: called from
  /// another thread while this one works. Ends the process.
  std::function<void(const std::string& why)> stop;
};

/// As put(), with all nodes agreeing: where one fails, all do. Throws UsageError for nodes that cannot be.
std::vector<PutResult> put_on_nodes(const std::vector<std::string>& sources, PutOptions options,
                                    const NodesOptions& nodes);

}  // namespace lockstep::transfer
