// Plays the schedules of operations between nodes (node_schedule.h) over MPI, without blocking. A buffer is divided into segments.
// Several segments are on the wire at the same time, of several operations if they are small; while they travel, the
// next one is summed on the node and finished ones are copied back.
//
// The order in which segments start is the order of the operations, the same on all nodes, and at any time only a
// window of them is active. So the oldest unfinished segment is active everywhere, and no two nodes wait for each
// other. The bits of a result depend on neither segments nor form.
//
// Each operation begins with a message to the next node that says what this node calls. Short first data for that node
// travels in it, other data beside it. Nothing that was received is sent on, and no operation is done, before the message of the node before is
// there and says the same. Data of another size stays where it arrived: the nodes that differ end the job.
//
// Threads: one at a time.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/cpu/node_schedule.h"
#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

class RequestCheck;

/// An operation among the ranks of a lane, by a schedule: an all-reduce of a buffer, or a reduce-scatter or all-gather of
/// a block for each node. Or an operation of MPI, with `post`.
struct NodeOperation {
  OperationRequest request;
  std::string label;
  /// Whether this rank compares the request with those of the other nodes.
  bool compares = true;

  /// Starts MPI's own operation. It is called when the ones before have ended, because MPI needs the same order of
  /// collectives on all ranks.
  std::function<void(std::vector<MPI_Request>&)> post = nullptr;
  /// After `post`: called when it has ended.
  std::function<void()> finish = nullptr;

  // Without `post`:

  /// Of an all-reduce this node's elements, then the result. Of the others the size of a block; no data.
  Buffer buffer;
  ScaledOp scaled;
  /// Halves that several ranks of this node sum travel as f32 until they are reduced, because they are rounded once.
  bool wide = false;
  /// Where a block lies in memory of this node, and its place among the blocks that travel (NodeExchange::block(); 0 if it
  /// is the only one).
  struct Block {
    std::size_t offset = 0;  ///< bytes
    std::size_t place = 0;
  };
  /// The memory of the ranks of this node that is summed, and its blocks; an all-gather sends only this node's.
  std::vector<std::byte*> operands = {};
  std::vector<Block> sent = {{}};
  /// The memory of this node that gets the result, and the blocks it gets.
  std::vector<std::byte*> results = {};
  std::vector<Block> received = {{}};

  bool done = false;
};

class NodeExchange {
 public:
  /// `lane` has one rank of each node, in the order of the nodes, and must outlive this object. If it is null, this rank
  /// can only start operations with `post` that it does not compare.
  NodeExchange(MPI_Comm lane, int node, int nodes, const NetworkCost& cost);
  ~NodeExchange();
  NodeExchange(const NodeExchange&) = delete;
  NodeExchange& operator=(const NodeExchange&) = delete;

  void start(std::shared_ptr<NodeOperation> operation);

  /// Does what is possible without waiting. Returns whether anything moved.
  bool advance();

  bool idle() const { return operations_.empty(); }

  /// The place of a node's block.
  std::size_t block(int node) const { return blocks_[static_cast<std::size_t>(node)]; }
  /// Of the last operation that was started.
  const NetworkUse& last_use() const { return last_use_; }

 private:
  struct Running;
  struct Segment;

  std::vector<Round> rounds_of(const Running& running, std::size_t count) const;
  Running* next_to_divide();
  bool advance_posted();
  bool start_segment();
  bool advance(Segment& segment);
  void send_requests();
  void post(Segment& segment);
  void post_receives(Segment& segment, const RequestCheck* check);
  void post_sends(Segment& segment, RequestCheck* check);
  void test_requests();
  void in_pieces(std::size_t count, std::size_t element_bytes,
                 const std::function<void(std::size_t begin, std::size_t count)>& work) const;
  void take_operands(Segment& segment) const;
  static void give_results(Segment& segment);
  void reduce(Segment& segment, const Round& round, bool last);

  MPI_Comm lane_;
  int node_;
  NodeGrid grid_;
  NodeGrid full_grid_;
  std::vector<std::size_t> blocks_;  // by node
  NetworkCost cost_;
  std::deque<std::unique_ptr<Running>> operations_;  // not done
  std::list<Segment> active_;
  std::size_t active_bytes_ = 0;
  std::uint64_t next_segment_ = 0;  // numbers the messages
  NetworkUse last_use_;
  struct Memory {
    std::vector<std::byte> scratch;
    std::vector<std::byte> packed;
    std::vector<float> wide;
  };
  std::vector<Memory> spare_;  // of segments that ended
  // Of test_requests():
  std::vector<MPI_Request> tested_;
  std::vector<std::pair<Segment*, std::size_t>> tested_in_;  // the index in Segment::requests
  std::vector<int> completed_;                               // indices in tested_
  std::vector<MPI_Status> statuses_;
};

}  // namespace lockstep::comm::cpu
