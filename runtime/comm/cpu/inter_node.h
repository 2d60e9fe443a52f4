// The part of each operation that crosses nodes, after the ranks of a node have done what they can do on the
// node. An interface, so that NodeGroup needs no MPI.
//
// Threads: the communicator's thread.
#pragma once

#include <string_view>

#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

class InterNode {
 public:
  virtual ~InterNode() = default;

  /// The number of slices of a buffer. Lane i consists of the i-th rank of every node, and its ranks exchange
  /// slice i. There are as many lanes as the smallest node has ranks.
  virtual int lanes() const = 0;

  /// Ends the job, with a line that names both requests, if two nodes call different operations. Every
  /// rank of a lane calls it before it exchanges data.
  virtual void check_same_request(const OperationRequest& request, std::string_view label) = 0;

  /// Reduces in place over this rank's lane, in the order of the nodes.
  virtual void all_reduce(Buffer slice, ScaledOp scaled) = 0;

  // Over all ranks, as in Communicator.
  virtual void broadcast(Buffer buffer, int root) = 0;
  virtual void all_gather(Buffer mine, void* all) = 0;
  virtual void reduce_scatter(void* all, Buffer mine, ScaledOp scaled) = 0;
  virtual void barrier() = 0;
};

}  // namespace lockstep::comm::cpu
