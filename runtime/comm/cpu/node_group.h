// Operations among the ranks of one node, in shared memory. There is no thread: a call of advance() does the
// work that is possible without waiting. So a hook in backward can do a piece of the work and go on
// computing, and a rank that has nothing to compute does the pieces of other ranks too.
//
// Each rank stores its request and the location of its data in its slot (OperationSlots). When all ranks have
// asked, an all-reduce is divided into chunks, and each rank has a share of them. For each chunk a rank adds
// up the elements of all ranks, in the order of the ranks, and writes the result to all of them: one pass
// over memory, and the same bits whichever rank does it. Data that is not in shared memory is copied there
// and back: as a whole, or piece by piece (PieceExchange) if a large all-reduce is on one node. A few KB are stored in
// the slots, and every rank adds them up separately.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/cpu/piece_exchange.h"
#include "runtime/comm/operation.h"
#include "runtime/comm/shm/segment.h"

namespace lockstep::comm::cpu {

class InterNode;
struct NodeOperation;

/// This rank's part of an operation: what was asked for, where its data lies, how far it is.
struct Task {
  OperationRequest request;
  std::string label;
  Buffer buffer;                      ///< the data to reduce or broadcast, or this rank's part
  void* all = nullptr;                ///< of an all_gather or reduce_scatter
  std::vector<PeerMessage> sends;     ///< of an exchange
  std::vector<PeerMessage> receives;  ///< of an exchange
  ReduceOptions options;
  std::shared_ptr<Operation> operation;

  std::uint64_t number = 0;
  std::shared_ptr<void> staging;              ///< a copy of the data, if it is not in shared memory
  std::vector<std::byte*> views;              ///< the data of every local rank, once the work has begun
  std::vector<std::shared_ptr<void>> mapped;  ///< keeps `views` valid
  bool compared = false;                      ///< with the requests of the other ranks
  bool in_pieces = false;                     ///< over PieceExchange
  bool share_done = false;                    ///< this rank has no more work to do
  bool copied = false;                        ///< what other ranks of the node got from other nodes
  std::shared_ptr<NodeOperation> exchange;    ///< the part that crosses nodes, once it has begun
  std::exception_ptr error;
};

class NodeGroup {
 public:
  /// `ranks`: the communicator's ranks on this node, by local rank. `inter_node` is null if there is one
  /// node.
  NodeGroup(OperationSlots slots, const RankInfo& place, std::vector<int> ranks,
            std::shared_ptr<InterNode> inter_node);

  /// Starts after the tasks that were added before.
  void add(std::shared_ptr<Task> task) { queued_.push_back(std::move(task)); }

  /// Does the work that is possible now. `waiting`: this rank has nothing else to do, so it works for other
  /// ranks too. Returns whether anything advanced.
  bool advance(bool waiting);

  /// Tells the other ranks that this rank starts no more operations: a rank that waits for it in one then
  /// ends the job. `world_ends`: also tells the other nodes; call advance() while exchanging().
  void leave(bool world_ends);

  bool idle() const { return queued_.empty() && posted_.empty(); }
  /// Whether messages of other nodes are awaited: then call advance() again soon.
  bool exchanging() const;
  NetworkUse network_use() const;
  const OperationSlots& slots() const { return slots_; }

 private:
  OperationSlot& my_slot(const Task& task) const { return slots_.slot(place_.local_rank, task.number); }
  bool is_inline(const Task& task) const;
  bool shares_data(const Task& task) const;
  bool may_be_in_pieces(const Task& task) const;

  bool post_next();
  bool stage(Task& task, OperationSlot& slot);
  static std::size_t staged_bytes_of(const std::vector<PeerMessage>& sends);
  static void stage_messages(const Task& task);
  void take_messages(const Task& task) const;
  bool all_have_asked(const Task& task) const;
  void end_job_if_a_rank_left(const Task& task) const;
  void compare(Task& task);
  bool find_data(Task& task);
  std::byte* data_of(int local_rank, Task& task);

  bool may_work(const Task& task) const;
  bool work(Task& task, bool waiting);
  bool work_on_chunks(Task& task, bool waiting);
  bool work_on_share(Task& task, int owner);
  bool work_in_pieces(Task& task, bool waiting);
  void copy_parts(Task& task);
  void end_share(Task& task);

  bool has_no_slice(const Task& task) const;
  int slices(const Task& task) const;
  bool work_across_nodes(Task& task);
  bool over_lanes(const Task& task) const;
  bool exchange_across_nodes(Task& task);
  bool copy_on_node(Task& task);
  // Values of done_chunks.
  struct Milestones {
    std::size_t copies_at =
        0;  // from then on, ranks copy what others of the node got from other nodes; 0: never
    std::size_t ends_at = 0;  // then no rank needs the memory of another one
  };
  Milestones milestones(const Task& task) const;
  Buffer shared_part(const Task& task) const;
  std::shared_ptr<NodeOperation> exchange_of(const Task& task) const;
  void reduce_slice(const Task& task, NodeOperation& operation) const;
  void reduce_blocks(const Task& task, NodeOperation& operation) const;
  void gather_blocks(const Task& task, NodeOperation& operation) const;
  std::shared_ptr<NodeOperation> posted_of(Task& task);
  bool overlaps_earlier(const Task& task) const;

  bool finished(const Task& task) const;
  void complete(Task& task);
  void take_result(Task& task);

  OperationSlots slots_;
  RankInfo place_;
  std::vector<int> ranks_;
  std::shared_ptr<InterNode> inter_node_;  // null with one node
  shm::StagingPool staging_;
  std::size_t staged_bytes_ = 0;  // in unfinished operations
  PieceExchange pieces_;
  const Task* in_pieces_ = nullptr;  // the operation that pieces_ works on

  struct Peer {
    std::uint64_t free_count = 0;
    std::map<std::uint64_t, std::shared_ptr<void>> segments;  // by inode
  };
  std::vector<Peer> peers_;

  std::uint64_t next_number_ = 0;
  std::deque<std::shared_ptr<Task>> queued_;  // not in a slot yet
  std::deque<std::shared_ptr<Task>> posted_;  // in a slot
};

}  // namespace lockstep::comm::cpu
