// What ranks do together: reduce, broadcast, gather, meet. An operation is asked for and runs in the
// background, in the order of asking, so that gradients travel while backward still computes. Every rank must
// ask for the same operations in the same order, with the same types and counts.
//
// The memory given to an operation stays the operation's until its handle says done.
//
// Threads: any thread may ask, but the order must be the same on all ranks, so let one thread do it.
#pragma once

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

enum class ReduceOp : std::uint8_t { sum, max, min };

struct AllReduceOptions {
  ReduceOp op = ReduceOp::sum;
  /// Where set, the result is multiplied by this (floating-point types only). It is read when the operation
  /// runs, so that an operation asked for earlier may still decide it (see `then`): averaging costs no pass
  /// over memory.
  const double* scale = nullptr;
  /// Called when the operation has succeeded, before it is done and before the next one begins, on the
  /// communicator's thread: short, and no operations from inside.
  std::function<void()> then = nullptr;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  const Place& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }

  /// "mpi", "single": for the line printed at start.
  virtual std::string_view name() const = 0;

  /// Reduces in place; every rank ends with the same bits. Sums are made in rank order, so the same run gives
  /// the same bits again; halves are summed as f32 and rounded once. `label` says in errors what the data is
  /// ("bucket 3").
  virtual WorkHandle all_reduce(Buffer buffer, std::string_view label, AllReduceOptions options = {}) = 0;

  /// Copies `root`'s elements to everyone.
  virtual WorkHandle broadcast(Buffer buffer, int root, std::string_view label) = 0;

  /// Puts every rank's `mine` into `all`, in rank order; `all` has room for size() × mine.count elements.
  virtual WorkHandle all_gather(Buffer mine, void* all, std::string_view label) = 0;

  /// Is done when every rank has asked for it.
  virtual WorkHandle barrier(std::string_view label) = 0;

  /// Zeroed memory in which this communicator works fastest, aligned to 64 bytes; any other memory works too.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);

 protected:
  explicit Communicator(Place place) : place_(std::move(place)) {}

 private:
  Place place_;
};

}  // namespace lockstep::comm
