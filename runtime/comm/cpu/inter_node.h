// The part of each operation that crosses nodes, over MPI, after the ranks of a node have done what they can do
// on the node. It waits without using a CPU (comm/mpi/wait.h).
//
// Threads: the main thread makes it, on all ranks together; then only the communicator's thread uses it.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <string_view>
#include <vector>

#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

class InterNode {
 public:
  /// `world` must outlive this object, and nothing else may use `world` until this object is destroyed.
  InterNode(MPI_Comm world, const Place& place);
  ~InterNode();
  InterNode(const InterNode&) = delete;
  InterNode& operator=(const InterNode&) = delete;

  /// The number of slices of a buffer. Lane i consists of the i-th rank of every node, and its ranks exchange
  /// slice i. There are as many lanes as the smallest node has ranks.
  int lanes() const { return lanes_; }

  /// Ends the job, with a line that names both requests, if two nodes call different operations. Every
  /// rank of a lane calls it before it exchanges data.
  void check_same_request(const OperationRequest& request, std::string_view label);

  /// Reduces in place over this rank's lane, in the order of the nodes.
  void all_reduce(Buffer slice, ScaledOp scaled);

  // Over all ranks, as in Communicator. The second and third throw Error for parts of 2 GiB or more.
  void broadcast(Buffer buffer, int root);
  void all_gather(Buffer mine, void* all);
  void reduce_scatter(void* all, Buffer mine, ScaledOp scaled);
  void barrier();

 private:
  MPI_Comm world_;
  MPI_Comm lane_ = MPI_COMM_NULL;
  Place place_;
  Place lane_place_;  // with one rank per node
  int lanes_ = 1;
  std::vector<std::byte> scratch_;
};

}  // namespace lockstep::comm::cpu
