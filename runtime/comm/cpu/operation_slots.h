// The memory through which the ranks of a node work together. It holds which operation each rank has asked for, where
// its data lies, how far the work is, and an event count to sleep on.
//
// Operations are numbered from 0, the same on all ranks. Operation n uses slot n mod kSlots of every rank, so
// a rank may call operation n only when all ranks have completed operation n - kSlots.
//
// A rank writes only its own area, except for the shared counters of chunks. A reader of another rank's slot
// first waits until that rank has `asked` for the operation.
//
// Threads: every field is atomic or published by one that is.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/comm/communicator.h"
#include "runtime/comm/shm/segment.h"

namespace lockstep::comm::cpu {

/// `end` is not an operation: a rank that leaves World asks for it.
enum class OperationKind : std::uint8_t {
  all_reduce,
  broadcast,
  all_gather,
  reduce_scatter,
  exchange,
  barrier,
  end
};

const char* name_of(OperationKind kind);

/// Data up to this size is stored in the slot.
constexpr std::size_t kInlineBytes = 4096;
constexpr std::uint64_t kSlots = 64;
/// How much of a label is stored, with its final 0.
constexpr std::size_t kLabelBytes = 128;

/// The part of a request that must be the same on all ranks.
struct OperationRequest {
  OperationKind kind = OperationKind::barrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;    ///< of a broadcast; a rank of the communicator
  std::uint64_t count = 0;  ///< elements of the buffer, or of each rank's part
  bool scaled = false;      ///< whether there is a scale; its value is known only later
  std::uint64_t label = 0;  ///< a hash of the label
  std::uint64_t step = 0;   ///< Communicator::set_step

  bool operator==(const OperationRequest&) const = default;
};

/// "all_reduce of bucket 3 (6553600 × f32, sum)"
std::string describe(const OperationRequest& request, std::string_view label);

struct OperationSlot {
  OperationRequest request;
  shm::Location location;  ///< of the data, unless it is in `data`
  std::uint64_t asked_ns = 0;
  std::uint64_t free_count = 0;                ///< the rank's shm::free_count() when it asked
  char label[kLabelBytes] = {};                ///< for messages; ends with 0
  std::atomic<std::uint32_t> next_chunk = 0;   ///< of this rank's share of the work
  std::atomic<std::uint32_t> done_chunks = 0;  ///< of the whole operation; only in the first rank's slot
  alignas(64) std::byte data[kInlineBytes] = {};
};

/// How far a rank is with the pieces of PieceExchange, and its buffers there.
struct RingProgress {
  alignas(64) std::atomic<std::uint64_t> filled = 0;
  std::atomic<std::uint64_t> summed = 0;
  std::atomic<std::uint64_t> taken = 0;
  shm::SegmentHandle memory;  ///< known once a piece is filled
};

struct RankArea {
  alignas(64) std::atomic<std::uint64_t> asked = 0;      ///< number of operations
  alignas(64) std::atomic<std::uint64_t> completed = 0;  ///< number of operations
  alignas(64) std::atomic<bool> left = false;            ///< the rank will not ask for more
  std::int32_t rank = 0;                                 ///< in the communicator
  std::int32_t world_rank = 0;                           ///< in the job, for messages
  cpu_set_t cpus = {};                                   ///< where the rank may run
  RingProgress ring;
  OperationSlot slots[kSlots];
};

/// The slots of one node and communicator.
class OperationSlots {
 private:
  struct EventCount {
    alignas(64) std::atomic<std::uint32_t> events = 0;
    alignas(64) std::atomic<std::uint32_t> sleepers = 0;
    std::atomic<std::int32_t> waiting = 0;
  };

 public:
  /// The first rank creates the slots and sends segment() to the others, which open them.
  static OperationSlots create(int ranks);
  static OperationSlots open(const shm::SegmentHandle& segment);

  shm::SegmentHandle segment() const { return segment_; }

  RankArea& area(int local_rank) const { return reinterpret_cast<RankArea*>(events_ + 1)[local_rank]; }
  OperationSlot& slot(int local_rank, std::uint64_t number) const {
    return area(local_rank).slots[number % kSlots];
  }

  /// Whether any rank is blocked in wait(), so that it has time to work for the others.
  bool any_rank_waits() const { return events_->waiting.load(std::memory_order_relaxed) > 0; }
  /// While an object of this class lives, this rank counts as waiting.
  class Waiting {
   public:
    explicit Waiting(const OperationSlots& slots) : events_(*slots.events_) {
      events_.waiting.fetch_add(1, std::memory_order_relaxed);
    }
    ~Waiting() { events_.waiting.fetch_sub(1, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    EventCount& events_;
  };

  /// Wakes all sleeping ranks. Call it after each change for which a rank may wait.
  void notify_all() const;
  /// The number of notifications so far. Read it before you check the condition for which you wait.
  std::uint32_t event_count() const { return events_->events.load(std::memory_order_acquire); }
  /// Sleeps until event_count() is no longer `seen`, or the timeout is over.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds timeout) const;

 private:
  OperationSlots(std::shared_ptr<void> memory, const shm::SegmentHandle& segment);

  std::shared_ptr<void> memory_;
  shm::SegmentHandle segment_;
  EventCount* events_ = nullptr;
};

/// Ends the job because the local rank `other` and the first rank of the node call different operations
/// with the same `number`. The first rank prints a line that names both; the others wait until the job ends.
[[noreturn]] void end_job_by_mismatch(const OperationSlots& slots, const RankInfo& place, int other,
                                      std::uint64_t number);

/// Ends the job because this rank waits for `operation`, and the local rank `left` has left without it.
[[noreturn]] void end_job_by_leaving(const OperationSlots& slots, const RankInfo& place, int left,
                                     const std::string& operation);

}  // namespace lockstep::comm::cpu
