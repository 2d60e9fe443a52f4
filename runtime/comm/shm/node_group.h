// The ranks of one node doing operations together in shared memory. Nothing runs by itself: whoever calls
// advance() does what can be done without waiting, so that a hook in backward can do a piece of the work and
// go on computing, and a rank that has nothing to compute does the others' pieces too.
//
// Each rank writes down what it asks for (Board) and where its data lies. When all have, an all-reduce is cut
// into chunks; each rank has a share of them, and for each chunk adds up all ranks' elements in the order of
// the ranks and writes the result back to all: one pass over memory, and the same bits whoever does it. Data
// that is not in shared memory is copied there and back; a few KB travel in the board itself, and every rank
// adds them up for itself.
//
// Threads: one at a time.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "runtime/comm/shm/across.h"
#include "runtime/comm/shm/staging_pool.h"
#include "runtime/comm/shm/task.h"

namespace lockstep::comm::shm {

class NodeGroup {
 public:
  /// `ranks`: the communicator's ranks on this node, by local rank; `across` is null where there is no other
  /// node.
  NodeGroup(Board board, const Place& place, std::vector<int> ranks, Across* across);

  /// Takes its turn after those added before.
  void add(std::shared_ptr<Task> task);

  /// Does what can be done now. `waiting`: this rank has nothing else to do, so it works for others too.
  /// Returns whether anything moved.
  bool advance(bool waiting);

  /// This rank asks for nothing more: ends the job where another waits for what this one never asked for.
  /// `world_ends`: the other nodes are told, too, and wait for each other.
  void leave(bool world_ends);

  bool idle() const { return asked_.empty() && running_.empty(); }
  const Board& board() const { return board_; }

 private:
  Slot& mine(const Task& task) const { return board_.slot(place_.local_rank, task.number); }
  bool is_inline(const Task& task) const;
  bool shares_data(const Task& task) const;

  bool post_next();
  bool stage(Task& task, Slot& slot);
  bool all_have_asked(const Task& task) const;
  void notice_who_left(const Task& task) const;
  void compare(Task& task);
  bool find_views(Task& task);
  std::byte* view_of(int local_rank, Task& task);

  bool may_work(const Task& task) const;
  bool work(Task& task, bool waiting);
  bool work_on_chunks(Task& task, bool waiting);
  bool work_on_share(Task& task, int owner);
  void copy_parts(Task& task);
  void end_share(Task& task);

  bool has_no_slice(const Task& task) const;
  int slices(const Task& task) const;
  void work_across(Task& task);
  void reduce_across(Task& task);

  bool finished(const Task& task) const;
  void complete(Task& task);
  void take_result(Task& task);

  Board board_;
  Place place_;
  std::vector<int> ranks_;
  Across* across_;
  StagingPool staging_;
  std::size_t staged_ = 0;   // bytes in flight
  std::vector<float> wide_;  // sums of halves on their way to other nodes

  struct Peer {
    std::uint64_t frees = 0;
    std::map<std::uint64_t, std::shared_ptr<void>> segments;  // by inode
  };
  std::vector<Peer> peers_;

  std::uint64_t next_number_ = 0;
  std::deque<std::shared_ptr<Task>> asked_;    // not on the board yet
  std::deque<std::shared_ptr<Task>> running_;  // on the board
};

}  // namespace lockstep::comm::shm
