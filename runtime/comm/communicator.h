// What ranks do together: reduce, broadcast, gather, meet. An operation is asked for and runs in the
// background, in the order of asking, so that gradients travel while backward still computes. Every rank must
// ask for the same operations in the same order, with the same types, counts and labels, in the same step.
//
// The memory given to an operation stays the operation's until its handle says done.
//
// Threads: any thread may ask, but the order must be the same on all ranks, so let one thread do it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/comm/data_type.h"
#include "runtime/comm/work.h"

namespace lockstep::comm {

/// Where this rank is among all ranks.
struct Place {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks on this node
  int local_size = 1;
  int node = 0;  ///< index, in the order of the nodes' first ranks
  int nodes = 1;
  std::string node_name;
};

/// Elements in memory; not owned.
struct Buffer {
  void* data = nullptr;
  std::size_t count = 0;  ///< elements
  DataType type = DataType::u8;

  std::size_t bytes() const { return count * size_of(type); }
};

enum class ReduceOp : std::uint8_t {
  sum,
  average,  ///< the sum divided by the number of ranks; floating-point types only
  max,
  min,
  bit_or,  ///< integers only
};

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  /// Where set, the result is multiplied by this (floating-point types only). It is read when the operation
  /// runs, so that an operation asked for earlier may still decide it (see `then`): averaging costs no pass
  /// over memory. It must be the same on all ranks.
  const double* scale = nullptr;
  /// Called when the operation has succeeded, before it is done and before the next one begins, on the
  /// communicator's thread: short, and no operations from inside.
  std::function<void()> then = nullptr;
  /// Lives until the operation has ended: what it works on, where the caller may go before that.
  std::shared_ptr<const void> keep = nullptr;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  const Place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }

  /// The step to which the operations asked for from now on belong: all messages name it, and it must be the
  /// same on all ranks. 0, as at first: none. (NCCL does not compare it.)
  void set_step(std::uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  std::uint64_t step() const { return step_.load(std::memory_order_relaxed); }

  /// "shared memory", "mpi", "single": for the line printed at start.
  virtual std::string_view name() const = 0;

  /// Reduces in place; every rank ends with the same bits. Sums are made in a fixed order (of the ranks on
  /// each node, then of the nodes), so the same run gives the same bits again; halves are summed as f32 and
  /// rounded once. `label` says in errors what the data is ("bucket 3"); it is the same on all ranks.
  virtual WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options = {}) = 0;

  /// Copies `root`'s elements to everyone.
  virtual WorkHandle broadcast(Buffer buffer, int root, std::string_view label) = 0;

  /// Puts every rank's `mine` into `all`, in rank order; `all` has room for size() × mine.count elements.
  /// `mine` may lie in its own place in `all`.
  virtual WorkHandle all_gather(Buffer mine, void* all, std::string_view label) = 0;

  /// Reduces everyone's `all` (size() × mine.count elements) and puts this rank's part, the rank-th, into
  /// `mine`; `mine` may lie in its own place in `all`, whose other parts then hold nothing of use. Summed
  /// in rank order.
  virtual WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label,
                                    ReduceOptions options = {}) = 0;

  /// Is done when every rank has asked for it.
  virtual WorkHandle barrier(std::string_view label) = 0;

  /// Zeroed memory in which this communicator works fastest, aligned to 64 bytes; any other memory works too.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);

  /// Moves operations on as far as that goes without waiting for anyone. Whoever computes calls it now and
  /// then, since a node's ranks may have no thread but that one to reduce with. Never blocks.
  virtual void progress() {}

  /// The CUDA device whose memory operations take; -1 where they take host memory. On a device an operation
  /// waits for what the asking thread's stream has been given, and Work::wait() makes the waiting thread's
  /// stream wait, not the thread; comm/nccl/communicator.h says what else differs.
  virtual int device() const { return -1; }

  /// For a device: tells the stream (cudaStream_t) on which the calling thread computes; the default stream
  /// without it. Before the first operation.
  virtual void set_stream_source(const std::function<void*()>& /*stream*/) {}

  /// A communicator of the ranks that gave the same color, in the order of their ranks here; null for a
  /// negative color. All ranks call it. This one must outlive it. `name` says in errors which group it is.
  virtual std::unique_ptr<Communicator> split(int color, std::string_view name) = 0;

 protected:
  explicit Communicator(Place place) : place_(std::move(place)) {}

 private:
  Place place_;
  std::atomic<std::uint64_t> step_{0};
};

}  // namespace lockstep::comm
