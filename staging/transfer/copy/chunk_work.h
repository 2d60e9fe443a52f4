// Which chunks are still to be got, and from whom: a queue for each member of a group of nodes. A node reads
// the chunks of its own queue from the source; those of another's it gets from there. Who is done asks a
// slower one to cede chunks; what a dead one was to bring is read by the next.
//
// Members may differ in what they know: one has given up whom others still get chunks from, or never heard
// what was ceded to it. Still none waits for ever, since nobody waits for somebody who waits: who is asked
// for a chunk has it, reads it, says to whom it has ceded it, or else reads it from then on; and who hears
// that the chunk has moved to itself reads it. Without failures each chunk is read by one of them.
//
// Threads: safe from any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace lockstep::transfer {

class ChunkWork {
 public:
  /// `members` queues, of which `self` is this node's. `owner` says whose a chunk is, `missing` whether it is
  /// still to be got.
  ChunkWork(std::size_t chunks, std::size_t members, std::size_t self,
            const std::function<std::size_t(std::size_t chunk)>& owner,
            const std::function<bool(std::size_t chunk)>& missing);

  /// The next chunk to read from the source; waits while others may still hand some over. Nothing when all
  /// are there, or stop() was called. Calls `idle` before it waits, without the lock.
  std::optional<std::size_t> take_own(const std::function<void()>& idle = {});

  /// The next chunk to ask a member for, if there is one. It answers by arrived(), put_back() or moved().
  std::optional<std::size_t> take(std::size_t member);

  /// The chunk came from whom it was asked for. False where it is not to be stored, since a thread of this
  /// node reads it by now.
  bool arrived(std::size_t chunk);

  /// A chunk is there.
  void done();

  /// A chunk that was taken is to be got from `member` instead, or its heir where that has been given up.
  void put_back(std::size_t chunk, std::size_t member);

  /// The same where the member that was asked says that `member` reads it now. Read here where that has been
  /// given up.
  void moved(std::size_t chunk, std::size_t member);

  /// Nothing more comes from this member: what is left of its queue goes to the chunks' heirs. All members
  /// have the same order of heirs for a chunk, so the source is read by one of them.
  void give_up(std::size_t member);

  /// Takes up to `most` chunks off the end of this node's own queue, leaving at least half: `to` will read
  /// them. What was ceded to this node is not ceded on, so that what it says of a chunk stays true.
  std::vector<std::size_t> cede(std::size_t most, std::size_t to);

  /// Another node asks for a chunk that is not there: to whom it was ceded. Where it was not, it is read
  /// here, also where somebody else has been asked for it.
  std::optional<std::size_t> asked_for(std::size_t chunk);

  /// A chunk that was ceded to this node: it is read here. Where somebody is being asked for it, that follows
  /// when they answer that it has moved here.
  void claim(std::size_t chunk);

  std::size_t self() const { return self_; }

  /// The member with the longest queue, if it has several; this node not counted.
  std::optional<std::size_t> slowest() const;

  bool finished() const;
  void stop();
  /// Waits until something changes, or for this long.
  void wait_for_change(int milliseconds) const;

 private:
  void insert(std::size_t chunk, std::size_t member);
  bool remove(std::size_t chunk, std::size_t member);
  bool answered(std::size_t chunk);
  void read_here(std::size_t chunk);
  std::size_t heir(std::size_t chunk) const;

  std::size_t self_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::deque<std::uint32_t>> queues_;
  std::vector<bool> own_;                                   // in the own queue, or taken from it
  std::unordered_set<std::uint32_t> asked_;                 // of others, who have not answered
  std::unordered_set<std::uint32_t> overtaken_;             // asked of others, but read here since
  std::unordered_map<std::uint32_t, std::uint32_t> ceded_;  // chunk, to whom it went from here
  std::unordered_set<std::uint32_t> ceded_here_;
  std::vector<bool> given_up_;
  std::size_t left_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::transfer
