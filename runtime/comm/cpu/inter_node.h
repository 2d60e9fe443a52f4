// The part of each operation that crosses nodes, over MPI, after the ranks of a node have done what they can do
// on the node. Nothing here waits: operations are started, and then advanced until they are done.
//
// Threads: the main thread makes it, on all ranks together; then one at a time.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "runtime/comm/cpu/node_exchange.h"
#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/cpu/request_check.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

/// An operation over all ranks that is not an all-reduce.
struct NodeCollective {
  std::optional<RequestCheck> check;  ///< of the first rank of a node
  std::function<void(std::vector<MPI_Request>&)> post;
  std::vector<MPI_Request> requests;
  std::function<void()> then = nullptr;
  bool posted = false;
};

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

  /// The all-reduces over this rank's lane. Only ranks with a local rank below lanes() have one.
  NodeExchange& exchange() { return *exchange_; }
  /// Whether an all-reduce is not done.
  bool exchanging() const { return exchange_ && !exchange_->idle(); }
  NetworkUse network_use() const { return exchange_ ? exchange_->last_use() : NetworkUse{}; }
  /// Whether several ranks of some node sum, so that halves travel as f32 until all are summed.
  bool sums_on_nodes() const { return sums_on_nodes_; }

  // As in Communicator. all_gather and reduce_scatter throw Error for parts of 2 GiB or more. The memory must stay valid
  // until advance() has returned true.
  std::shared_ptr<NodeCollective> broadcast(Buffer buffer, int root);
  std::shared_ptr<NodeCollective> all_gather(Buffer mine, void* all);
  std::shared_ptr<NodeCollective> reduce_scatter(void* all, Buffer mine, ScaledOp scaled);
  std::shared_ptr<NodeCollective> barrier();

  /// Compares the requests of the nodes first. Every rank calls it before the first advance().
  void begin(NodeCollective& collective, const OperationRequest& request, std::string_view label);
  /// Whether it is done. Ends the job, with a line that names both requests, if two nodes call different operations.
  bool advance(NodeCollective& collective);

  /// Waits until all nodes have called it.
  void end();

 private:
  MPI_Comm world_;
  MPI_Comm lane_ = MPI_COMM_NULL;
  Place place_;
  int lanes_ = 1;
  bool sums_on_nodes_ = false;
  std::optional<NodeExchange> exchange_;
  std::vector<std::byte> scratch_;  // of reduce_scatter
};

}  // namespace lockstep::comm::cpu
