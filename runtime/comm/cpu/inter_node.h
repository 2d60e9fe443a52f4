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
#include <utility>
#include <vector>

#include "runtime/comm/cpu/node_exchange.h"
#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

class InterNode {
 public:
  /// `world` must outlive this object, and nothing else may use `world` until this object is destroyed.
  InterNode(MPI_Comm world, const RankInfo& place);
  ~InterNode();
  InterNode(const InterNode&) = delete;
  InterNode& operator=(const InterNode&) = delete;

  /// The number of slices of a buffer. Lane i consists of the i-th rank of every node, and its ranks exchange
  /// slice i. There are as many lanes as the smallest node has ranks.
  int lanes() const { return lanes_; }

  /// Runs the operations. Only ranks with a local rank below lanes() have a lane.
  NodeExchange& exchange() { return *exchange_; }
  const NodeExchange& exchange() const { return *exchange_; }
  /// Whether several ranks of some node sum, so that halves travel as f32 until all are summed.
  bool sums_on_nodes() const { return sums_on_nodes_; }

  /// Whether all nodes have the same number of ranks. Then reduce-scatter, all-gather and broadcast go over the lanes.
  bool equal_nodes() const { return !ranks_.empty(); }
  /// The rank with this local rank; only with equal nodes.
  std::size_t rank_of(int node, int local_rank) const {
    return ranks_[static_cast<std::size_t>(node * lanes_ + local_rank)];
  }
  /// The node and local rank of a rank.
  std::pair<int, int> position_of(int rank) const;

  /// Copies the buffer of `node` to the ranks of this rank's lane.
  std::shared_ptr<NodeOperation> broadcast_on_lane(Buffer buffer, int node) {
    return broadcast(buffer, node, lane_);
  }
  /// Only compares the requests.
  std::shared_ptr<NodeOperation> nothing() const;

  // Over all ranks, as in Communicator. all_gather and reduce_scatter throw Error for parts of 2 GiB or more. The memory
  // must stay valid until the operation is done.
  std::shared_ptr<NodeOperation> broadcast(Buffer buffer, int root) {
    return broadcast(buffer, root, world_);
  }
  std::shared_ptr<NodeOperation> all_gather(Buffer mine, void* all) const;
  std::shared_ptr<NodeOperation> reduce_scatter(void* all, Buffer mine, ScaledOp scaled);
  std::shared_ptr<NodeOperation> exchange(const std::vector<PeerMessage>& sends,
                                          const std::vector<PeerMessage>& receives) const;
  std::shared_ptr<NodeOperation> barrier() const;

 private:
  std::shared_ptr<NodeOperation> posted(std::function<void(std::vector<MPI_Request>&)> post) const;
  std::shared_ptr<NodeOperation> broadcast(Buffer buffer, int root, MPI_Comm comm);

  MPI_Comm world_;
  MPI_Comm lane_ = MPI_COMM_NULL;
  RankInfo place_;
  int lanes_ = 1;
  bool sums_on_nodes_ = false;
  std::optional<NodeExchange> exchange_;
  std::vector<std::size_t> ranks_;  // by node and local rank; empty if nodes differ
  std::vector<std::byte> scratch_;  // of reduce_scatter
};

}  // namespace lockstep::comm::cpu
