// Which chunks are still to be got, and from whom: a queue for each member of a group of nodes. A node reads
// the chunks of its own queue from the source; those of another's it gets from there. Who is done asks a
// slower one to cede chunks; what a dead one was to bring goes to one's own queue.
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

  /// The next chunk to ask a member for, if there is one.
  std::optional<std::size_t> take(std::size_t member);

  /// A chunk is there.
  void done();

  /// A chunk that was taken is to be got from `member` instead, or its heir where that has been given up.
  void put_back(std::size_t chunk, std::size_t member);

  /// The same where the member that was asked says that `member` reads it now: where that is this node, but
  /// it has passed the chunk on since, it is got from whom it was passed to. Read here where that has been
  /// given up.
  void moved(std::size_t chunk, std::size_t member);

  /// Nothing more comes from this member: what is left of its queue goes to the chunks' heirs. All members
  /// have the same order of heirs for a chunk, so none waits for another in a circle, and the source is read
  /// by one of them. With `to_self` this node reads it, and what those bring that it gives up later: the
  /// member may have ceded chunks to it in an answer that was lost, and send the others here for them.
  void give_up(std::size_t member, bool to_self = false);

  /// Takes up to `most` chunks off the end of this node's own queue, leaving at least one: `to` will read
  /// them.
  std::vector<std::size_t> cede(std::size_t most, std::size_t to);
  /// To whom a chunk of this node's was ceded.
  std::optional<std::size_t> ceded_to(std::size_t chunk) const;

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
  std::size_t heir(std::size_t chunk) const;

  std::size_t self_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::deque<std::uint32_t>> queues_;
  std::unordered_map<std::uint32_t, std::uint32_t> ceded_;  // chunk, to whom it went from here last
  std::unordered_set<std::uint32_t> expected_;  // others may have been told that this node reads them
  std::vector<bool> given_up_;
  bool no_heirs_ = false;  // so it may be with any chunk
  std::size_t left_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::transfer
