// What the ranks of a node tell each other, in memory that all of them have mapped: which operation each has
// asked for and where its data lies, how far the work on it is, and a bell to sleep on.
//
// Operations are numbered from 0 in the order of asking, the same on all ranks. The n-th uses slot
// n mod kSlots of every rank, so a rank may ask for the n-th only when all have completed number n - kSlots.
//
// A rank writes only what is its own, except for the counters of work, which are shared; whoever reads a slot
// first waits until its rank has `asked` for that number.
//
// Threads: every field is atomic or handed over by one that is.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/comm/communicator.h"
#include "runtime/comm/shm/segment.h"

namespace lockstep::comm::shm {

/// `end`: no operation; what a rank says that leaves World.
enum class Kind : std::uint8_t { all_reduce, broadcast, all_gather, reduce_scatter, barrier, end };

const char* name_of(Kind kind);

/// Data up to this size travels in the slot itself.
constexpr std::size_t kInlineBytes = 4096;
constexpr std::uint64_t kSlots = 64;
/// What is kept of a label, its final 0 included.
constexpr std::size_t kLabelBytes = 128;

/// What all ranks must ask for alike.
struct Request {
  Kind kind = Kind::barrier;
  DataType type = DataType::u8;
  ReduceOp op = ReduceOp::sum;
  std::int32_t root = 0;    ///< of a broadcast; a rank of the communicator
  std::uint64_t count = 0;  ///< elements of the buffer, or of each rank's part
  bool scaled = false;      ///< whether there is a factor; what it is is known only later
  std::uint64_t label = 0;  ///< a hash of it
  std::uint64_t step = 0;   ///< Communicator::set_step

  bool operator==(const Request&) const = default;
};

struct Slot {
  Request request;
  Location location;  ///< of the data, where it is not inline
  std::uint64_t asked_ns = 0;
  std::uint64_t frees = 0;                     ///< the rank's shm::frees() when it asked
  char label[kLabelBytes] = {};                ///< for messages; ends with 0
  std::atomic<std::uint32_t> next_chunk = 0;   ///< of this rank's share of the work
  std::atomic<std::uint32_t> done_chunks = 0;  ///< of the whole operation: the first rank's slot has it
  alignas(64) std::byte data[kInlineBytes] = {};
};

struct RankArea {
  alignas(64) std::atomic<std::uint64_t> asked = 0;      ///< operations
  alignas(64) std::atomic<std::uint64_t> completed = 0;  ///< operations
  alignas(64) std::atomic<bool> left = false;            ///< asks for nothing more
  std::int32_t rank = 0;                                 ///< in the communicator
  std::int32_t world_rank = 0;                           ///< in the job, for messages
  cpu_set_t cpus = {};                                   ///< where the rank may run
  Slot slots[kSlots];
};

/// One per node and communicator; made by its first rank.
class Board {
 private:
  struct Bell {
    alignas(64) std::atomic<std::uint32_t> rung = 0;
    alignas(64) std::atomic<std::uint32_t> sleepers = 0;
    std::atomic<std::int32_t> waiting = 0;
  };

 public:
  /// The first rank makes it; the name goes to the others.
  static Board make(int ranks);
  static Board open(const SegmentName& name);

  SegmentName name() const;

  RankArea& of(int local_rank) const { return areas()[local_rank]; }
  Slot& slot(int local_rank, std::uint64_t number) const { return of(local_rank).slots[number % kSlots]; }

  /// Whether any rank waits, so that it has time to work for the others.
  bool anyone_waits() const { return bell_->waiting.load(std::memory_order_relaxed) > 0; }
  /// This rank waits as long as it lives.
  class Waiting {
   public:
    explicit Waiting(const Board& board) : bell_(*board.bell_) {
      bell_.waiting.fetch_add(1, std::memory_order_relaxed);
    }
    ~Waiting() { bell_.waiting.fetch_sub(1, std::memory_order_relaxed); }
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    Bell& bell_;
  };

  /// Wakes everyone who sleeps; call it after each change that somebody may wait for.
  void ring() const;
  /// The bell's state, to be read before one looks at what one waits for.
  std::uint32_t listen() const { return bell_->rung.load(std::memory_order_acquire); }
  /// Sleeps until the bell has rung since listen(), or the time is over.
  void sleep(std::uint32_t heard, std::chrono::nanoseconds at_most) const;

 private:
  Board(std::shared_ptr<void> memory, SegmentName name);
  RankArea* areas() const;

  std::shared_ptr<void> memory_;
  SegmentName name_;
  Bell* bell_ = nullptr;
};

}  // namespace lockstep::comm::shm
