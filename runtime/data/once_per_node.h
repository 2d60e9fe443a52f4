// Work that has the same result on every rank of a node, done by one of them: whichever comes first does it,
// those that come meanwhile wait for it, and those that come later take what it left. A piece of work is
// known by its key, so nobody needs to ask in the same order, or at all: a rank that never comes holds up
// nobody, and one that comes after the result is gone (each rank keeps its last few) does the work itself.
// What is wrong with the work (Error, UsageError) is thrown on all that come for it. A rank that does not get
// on with it, because it is stopped or swaps, holds up the others for some seconds and no longer: they then
// do the work themselves, and whatever they do together next says which rank is missing.
//
// Results lie in memory that the node's ranks share; it has no name, and nothing is left of it when they end.
//
// Threads: of_node() is for the thread that uses the communicator; the rest is safe from any.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"

namespace lockstep::data {

class OncePerNode {
 public:
  /// Of the result: everything that it depends on, hashed.
  struct Key {
    std::uint64_t low = 0;
    std::uint64_t high = 0;
    bool operator==(const Key&) const = default;
  };
  using Bytes = std::vector<std::byte>;

  /// All ranks call it. Null where this rank is the only one on its node, or cannot share memory with those:
  /// then it has to do all work itself. Nobody waits longer than `most_wait` for the work of another rank:
  /// it should be many times what a piece of work takes.
  static std::shared_ptr<OncePerNode> of_node(comm::Communicator& communicator,
                                              std::chrono::milliseconds most_wait = std::chrono::seconds(5));

  /// What another rank's `make` gave for this key. Nothing: `make` ran here, so that this rank has it
  /// already. Throws what `make` throws here, and what it threw there if that was an Error or UsageError.
  std::optional<Bytes> get(const Key& key, const std::function<Bytes()>& make);

  /// From here on work that failed is tried again. All ranks call it as often.
  void forget_failures() { ++attempt_; }

  /// How often this rank did the work.
  std::uint64_t made() const { return made_; }

  ~OncePerNode();
  OncePerNode(const OncePerNode&) = delete;
  OncePerNode& operator=(const OncePerNode&) = delete;

 private:
  struct Entry;
  struct Board;
  class Lock;
  class Making;
  OncePerNode(std::shared_ptr<void> memory, const comm::Place& place, std::chrono::nanoseconds most_wait);
  Entry* find(const Key& key) const;
  std::optional<std::size_t> claim(const Key& key);
  std::optional<Bytes> copy(Lock& lock, Entry& entry);
  void publish(std::size_t own, const Bytes& bytes);
  Entry& own_entry(std::size_t own) const;

  std::shared_ptr<void> memory_;  // of the board
  Board* board_;
  int local_rank_;
  int local_size_;
  std::chrono::nanoseconds most_wait_;
  std::vector<std::shared_ptr<void>> results_;  // of this rank's entries
  std::atomic<std::uint64_t> attempt_ = 0;
  std::atomic<std::uint64_t> made_ = 0;
};

}  // namespace lockstep::data
