// The collective operations of ranks: all-reduce, broadcast, all-gather, reduce-scatter, exchange, barrier. A call returns
// at once; operations run in the background, in the order of the calls, so that gradients travel while
// backward still computes. Every rank must call the same operations in the same
// order, with the same types, counts and labels, in the same step.
//
// Do not touch an operation's memory until its handle says that it is done.
//
// Threads: any thread may call, but the order of the calls must be the same on all ranks, so let one thread
// do it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The element types that ranks exchange.

namespace lockstep::comm {

enum class DataType : std::uint8_t { f32, f64, bf16, f16, i32, i64, u8 };

/// Bytes of one element.
constexpr std::size_t size_of(DataType type) {
  constexpr std::array<std::size_t, 7> kBytes = {4, 8, 2, 2, 4, 8, 1};
  return kBytes.at(static_cast<std::size_t>(type));
}

/// The first element of `part` when `count` elements are divided into `parts`. Parts begin on cache lines, so
/// that two ranks that write their parts never share a line.
constexpr std::size_t part_begin(std::size_t count, std::size_t part, std::size_t parts, DataType type) {
  if (part == parts) return count;
  const std::size_t line = 64 / size_of(type);
  return count * part / parts / line * line;
}

/// "f32"
constexpr const char* name_of(DataType type) {
  constexpr std::array<const char*, 7> kNames = {"f32", "f64", "bf16", "f16", "i32", "i64", "u8"};
  return kNames.at(static_cast<std::size_t>(type));
}

// The handle of a collective operation.

/// When an operation was asked for, began and ended: monotonic nanoseconds, 0 if not yet.
struct WorkTimes {
  std::uint64_t asked_ns = 0;
  std::uint64_t began_ns = 0;
  std::uint64_t ended_ns = 0;
  /// When the last rank asked for it, and which rank that was. Known only if all ranks are on one node.
  std::uint64_t all_asked_ns = 0;
  int late_rank = -1;
};

class Work {
 public:
  virtual ~Work() = default;

  /// Whether it has ended, with or without success. Never blocks.
  virtual bool done() const = 0;

  /// Blocks until it has ended. Throws Error, naming operation, rank and node, if it failed. If it does not
  /// end within LOCKSTEP_TIMEOUT, the job ends with a line that names them (comm/failure.h), because an
  /// operation that some rank never joins cannot be cancelled.
  virtual void wait() = 0;

  virtual WorkTimes times() const = 0;
};

using WorkHandle = std::shared_ptr<Work>;

/// The time from the begin of the first of these operations on host memory, which have ended, to the end of the last one,
/// in nanoseconds. Waiting for later ranks counts only if they are on other nodes. 0 without an operation.
std::uint64_t duration_ns(std::span<const WorkHandle> works);

/// This rank's position among all ranks.
struct RankInfo {
  int rank = 0;
  int size = 1;
  int local_rank = 0;  ///< among the ranks of this node
  int local_size = 1;
  int node = 0;  ///< index; nodes are ordered by their first ranks
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
  /// i64 only: a number whose lowest bit is 0 is summed; of one whose lowest bit is 1, the maximum is taken. All ranks
  /// have the same lowest bits. So one small operation can do both.
  sum_or_max,
};

/// "sum"
constexpr const char* name_of(ReduceOp op) {
  constexpr std::array<const char*, 6> kNames = {"sum", "average", "max", "min", "bit_or", "sum_or_max"};
  return kNames.at(static_cast<std::size_t>(op));
}

struct ReduceOptions {
  ReduceOp op = ReduceOp::sum;
  /// If set, the result is multiplied by this number, without another pass over memory. It is read when the
  /// operation runs, so that the `then` of an earlier operation can set it. It must be the same on all ranks.
  /// Floating-point types in host memory only.
  const double* scale = nullptr;
  /// Called when the operation has succeeded, before it is done and before the next one begins, on a
  /// thread of the communicator or one that waits for an operation. It must be short and must not call operations.
  std::function<void()> then = nullptr;
  /// The owner of the operation's memory, kept alive until the operation has ended. Set it if the caller may
  /// be destroyed earlier.
  std::shared_ptr<const void> keep = nullptr;
};

/// Bytes for another rank, or from it.
struct PeerMessage {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// How an operation between nodes used the network.
struct NetworkUse {
  int rounds = 0;  ///< of messages that wait for each other, for each segment of the buffer
  int peers = 0;   ///< nodes with which this rank exchanged data
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  const RankInfo& place() const { return place_; }
  int rank() const { return place_.rank; }
  int size() const { return place_.size; }

  /// The training step of the operations asked for from now on. Messages name it, and it must be the same on
  /// all ranks (NCCL does not check that). 0, the initial value: no step.
  void set_step(std::uint64_t step) { step_.store(step, std::memory_order_relaxed); }
  std::uint64_t step() const { return step_.load(std::memory_order_relaxed); }

  /// "shared memory", "mpi", "single": for the line that World prints.
  virtual std::string_view name() const = 0;

  /// Reduces in place. All ranks get the same bits. The order of summation is fixed (the ranks of each node,
  /// then the nodes), so a second run gives the same bits again. Halves are summed as f32 and rounded once.
  /// `label` names the data in errors ("bucket 3"); it must be the same on all ranks.
  virtual WorkHandle all_reduce(Buffer buffer, std::string_view label, ReduceOptions options = {}) = 0;

  /// Copies the elements of `root` to all ranks.
  virtual WorkHandle broadcast(Buffer buffer, int root, std::string_view label) = 0;

  /// Puts `mine` of every rank into `all`, in rank order; `all` has space for size() × mine.count elements.
  /// `mine` may be this rank's part of `all`.
  virtual WorkHandle all_gather(Buffer mine, void* all, std::string_view label) = 0;

  /// Reduces `all` of every rank (size() × mine.count elements) and puts this rank's part into `mine`. `mine`
  /// may be this rank's part of `all`; the other parts are then undefined. The order of summation is fixed.
  virtual WorkHandle reduce_scatter(void* all, Buffer mine, std::string_view label,
                                    ReduceOptions options = {}) = 0;

  /// Sends messages to other ranks and receives messages from them. All ranks call it; only those that exchange
  /// something wait for each other. A rank names each peer at most once in each list, and not itself. Both ranks of a
  /// message must give the same size. Throws UsageError for a peer that does not exist.
  virtual WorkHandle exchange(std::span<const PeerMessage> sends, std::span<const PeerMessage> receives,
                              std::string_view label) = 0;

  /// Done when every rank has asked for it.
  virtual WorkHandle barrier(std::string_view label) = 0;

  /// Zeroed memory, aligned to 64 bytes, that makes operations fastest. Other memory works too.
  virtual std::shared_ptr<void> allocate(std::size_t bytes);

  /// Advances operations without blocking. Call it now and then while you compute, since the communicator may
  /// have no thread of its own.
  virtual void progress() {}

  /// Of this rank's last all-reduce between nodes.
  virtual NetworkUse network_use() const { return {}; }

  /// The CUDA device whose memory the operations use; -1 for host memory. On a device an operation runs after
  /// the work that the calling thread's stream already has, and Work::wait() makes the stream wait, not the
  /// thread. comm/nccl/communicator.h lists the other differences.
  virtual int device() const { return -1; }

  /// For a device: a function that returns the stream (cudaStream_t) on which the calling thread computes; by
  /// default the default stream. Call it before the first operation.
  virtual void set_stream_source(const std::function<void*()>& /*stream*/) {}

  /// For a device: the stream (cudaStream_t) on which operations run; by default one of the communicator's own. It must
  /// outlive the communicator. Call it before the first operation.
  virtual void set_stream(void* /*stream*/) {}

  /// A communicator of the ranks with the same color, in the order of their ranks here; null for a negative
  /// color. All ranks call it. This communicator must outlive the new one. `name` names the group in errors. Ranks must
  /// wait in the same order for operations of a job on several nodes and of a group within one node: a rank that
  /// waits for the former does no work for the latter.
  virtual std::unique_ptr<Communicator> split(int color, std::string_view name) = 0;

 protected:
  /// Throws UsageError for messages that exchange() does not take.
  void check_peers(std::span<const PeerMessage> messages) const;
  explicit Communicator(RankInfo place) : place_(std::move(place)) {}

 private:
  RankInfo place_;
  std::atomic<std::uint64_t> step_{0};
};

// Work that must succeed on every rank before any rank goes on, such as opening data: a rank that fails alone
// would leave the others waiting for it.

/// Why work failed. `rank` and `reason` are the same on all ranks.
struct RankFailure {
  int rank = 0;            ///< the lowest rank that failed
  std::string reason;      ///< the first line of its exception, at most 399 bytes
  std::exception_ptr own;  ///< the exception of this rank; null if it did not fail
};

/// Collective: runs `work` on every rank and returns the failure if it threw on any of them. Collectives
/// inside `work` must fail on all ranks or on none. `label` names the work in errors, the same on all ranks.
std::optional<RankFailure> run_on_all_ranks(Communicator& communicator, std::string_view label,
                                            const std::function<void()>& work);

}  // namespace lockstep::comm
