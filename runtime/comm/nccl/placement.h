// Which device each rank computes on, as all ranks know it, and whether NCCL can work so: it refuses two
// ranks on one device, with a message that names neither.
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
  int devices = 0;       ///< that this rank can see
  int device = 0;        ///< its number for this rank
  std::string identity;  ///< of the device; empty where there is none
  std::string trouble;   ///< why there is none
};

/// Throws UsageError, the same on every rank, that names the first rank without a device, or the first two
/// that share one.
void check_placement(const std::vector<DeviceOfRank>& ranks);

}  // namespace lockstep::comm::nccl
