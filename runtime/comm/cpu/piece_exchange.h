// All-reduce of memory that the other ranks of a node cannot map, piece by piece through a few small buffers that stay
// in the caches. A copy of the whole data would cost more than the sum: its memory is new to every cache.
//
// For each piece a rank fills its buffer with the shares of the other ranks, adds up its own share from all buffers and
// puts the result into its memory and its buffer, and takes the other shares' results out of theirs. A rank may be as
// many pieces ahead of the others as there are buffers. Elements are added in the order of the ranks.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/cpu/operation_slots.h"
#include "runtime/comm/reduction.h"

namespace lockstep::comm::cpu {

class PieceExchange {
 public:
  PieceExchange(const OperationSlots& slots, int local_rank, int ranks);

  /// Begins an all-reduce in place; the one before must be done. All ranks begin the same ones in the same order.
  void start(Buffer buffer, const ScaledOp& scaled);

  bool done() const { return taken_ == end_; }

  /// Does the work that is possible without waiting; if not `all` of it, then at most on one piece. Returns whether
  /// there was any. Throws Error if the memory of another rank cannot be mapped.
  bool advance(bool all);

 private:
  struct Share {
    std::size_t begin = 0;  // elements from the beginning of the piece
    std::size_t count = 0;
  };
  std::size_t elements() const;
  Share share_of(int rank, std::uint64_t piece) const;
  std::byte* mine(std::uint64_t piece, const Share& share) const;
  std::byte* buffer_of(int rank, std::uint64_t piece, const Share& share);
  bool all_have(std::atomic<std::uint64_t> RingProgress::*passed, std::uint64_t count) const;
  void fill();
  void sum();
  void take();

  OperationSlots slots_;
  int rank_;
  int ranks_;
  RingProgress& shared_;                        // this rank's
  std::vector<std::shared_ptr<void>> buffers_;  // by rank
  Buffer buffer_;
  ScaledOp scaled_;
  // Pieces are numbered on, from operation to operation.
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t filled_ = 0;
  std::uint64_t summed_ = 0;
  std::uint64_t taken_ = 0;
};

}  // namespace lockstep::comm::cpu
