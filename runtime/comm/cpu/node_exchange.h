// Plays the schedules of all-reduces (node_schedule.h) over MPI, without blocking. A buffer is divided into segments.
// Several segments are on the wire at the same time, of several operations if they are small; while they travel, the
// next one is summed on the node and finished ones are copied back.
//
// The order in which segments start is the order of the operations, the same on all nodes, and at any time only a
// window of them is active. So the oldest unfinished segment is active everywhere, and no two nodes wait for each
// other. The bits of a result depend on neither segments nor form.
//
// Each operation begins with a message to the next node that says what this node calls. It travels beside the first
// data. Nothing that was received is sent on, and no operation is done, before the message of the node before is
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
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/cpu/node_schedule.h"
#include "runtime/comm/cpu/request_check.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

/// An all-reduce of a buffer of this node with those of the other nodes.
struct NodeAllReduce {
  OperationRequest request;
  std::string label;
  Buffer buffer;  ///< this node's elements, then the result
  ScaledOp scaled;
  /// Halves that several ranks of this node sum travel as f32 until they are reduced, because they are rounded once.
  bool wide = false;
  /// Called before the elements [begin, begin + count) are sent: puts this node's sum into the buffer, or into
  /// `wide` if that is not null.
  std::function<void(std::size_t begin, std::size_t count, float* wide)> prepare;
  /// Called when these elements of the buffer have the result.
  std::function<void(std::size_t begin, std::size_t count)> finish;

  bool done = false;
};

class NodeExchange {
 public:
  /// `lane` has one rank of each node, in the order of the nodes, and must outlive this object.
  NodeExchange(MPI_Comm lane, int node, int nodes, const NetworkCost& cost);
  ~NodeExchange();
  NodeExchange(const NodeExchange&) = delete;
  NodeExchange& operator=(const NodeExchange&) = delete;

  void start(std::shared_ptr<NodeAllReduce> operation);

  /// Does what is possible without waiting. Returns whether anything moved.
  bool advance();

  bool idle() const { return operations_.empty(); }
  /// Of the last operation that was started.
  const NetworkUse& last_use() const { return last_use_; }

 private:
  struct Running;
  struct Segment;

  Running* next_to_divide();
  bool start_segment();
  bool advance(Segment& segment);
  void post(Segment& segment);
  bool arrived(Segment& segment);
  void reduce(Segment& segment, const Round& round, bool last);

  MPI_Comm lane_;
  int node_;
  NodeGrid grid_;
  NetworkCost cost_;
  std::deque<std::unique_ptr<Running>> operations_;  // not done
  std::list<Segment> active_;
  std::size_t active_bytes_ = 0;
  std::uint64_t next_segment_ = 0;  // numbers the messages
  NetworkUse last_use_;
  struct Memory {
    std::vector<std::byte> scratch;
    std::vector<float> wide;
  };
  std::vector<Memory> spare_;  // of segments that ended
};

}  // namespace lockstep::comm::cpu
