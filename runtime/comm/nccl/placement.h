// Checks that every rank has its own device. NCCL refuses two ranks on one device too, but its message names
// neither of them.
//
// Threads: values.
#pragma once

#include <string>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::comm::nccl {

struct DeviceOfRank {
  int rank = 0;
  std::string node;
  int node_ranks = 1;    ///< ranks on this rank's node
  int devices = 0;       ///< the number that this rank can see
  int device = 0;        ///< its number for this rank
  std::string identity;  ///< of the device; empty if the rank has none
  std::string trouble;   ///< why it has none
};

/// Throws the same UsageError on every rank if a rank has no device or two ranks share one. It names the
/// first of them.
void check_placement(const std::vector<DeviceOfRank>& ranks);

}  // namespace lockstep::comm::nccl
