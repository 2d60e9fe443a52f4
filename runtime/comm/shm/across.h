// What a node's ranks need from those of other nodes, once they have done on the node what can be done there.
//
// Threads: the communicator's thread.
#pragma once

#include <string_view>

#include "runtime/comm/reduction.h"
#include "runtime/comm/shm/board.h"

namespace lockstep::comm::shm {

class Across {
 public:
  virtual ~Across() = default;

  /// Into how many slices a buffer is cut so that as many ranks of each node exchange one of them each: the
  /// fewest ranks that a node has.
  virtual int lanes() const = 0;

  /// Ends the job with a line that names both where the nodes ask for different things. Every rank of a lane
  /// that is about to exchange something calls it.
  virtual void agree(const Request& request, std::string_view label) = 0;

  /// Reduces in place over this rank's lane, one rank per node, in the order of the nodes.
  virtual void all_reduce(Buffer slice, Finish finish) = 0;

  // Over all ranks, as Communicator's.
  virtual void broadcast(Buffer buffer, int root) = 0;
  virtual void all_gather(Buffer mine, void* all) = 0;
  virtual void reduce_scatter(void* all, Buffer mine, Finish finish) = 0;
  virtual void barrier() = 0;
};

}  // namespace lockstep::comm::shm
