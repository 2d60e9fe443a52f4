// One ring on one node: what the threads that receive, read, store and send share. RingNode and ListRelay decide; this
// class lets the threads wait, and keeps the lists, the chunks that are not stored yet, and a few that were stored a moment ago:
// a successor that keeps up gets them from memory, one that lags from the disk.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/copy/limits.h"
#include "staging/transfer/exchange/ring_node.h"

namespace lockstep::transfer {

/// The chunks of a ring on this node, from when its lists are here. Safe from any thread.
struct RingChunks {
  std::function<std::uint32_t(std::size_t chunk)> bytes;
  /// The digest with which a chunk was stored.
  std::function<pack::Digest(std::size_t chunk)> digest;
  /// Reads a stored chunk. False if it cannot be read.
  std::function<bool(std::size_t chunk, std::span<std::byte> into)> read;
  /// How many chunks stay in memory after they are stored.
  std::size_t keep = 0;
};

/// A chunk in memory whose digest is right.
struct CheckedChunk {
  std::size_t chunk = 0;
  LentChunk data;
  pack::Digest digest{};
  std::uint32_t origin = 0;  ///< the node that read it from the source
};

class Ring {
 public:
  Ring(std::uint32_t place, std::uint32_t nodes, const std::vector<ListRelay::From>& lists);

  // Lists of files, by the source's number in the ring.

  void list_made(std::size_t source, std::shared_ptr<const std::string> list);
  /// False if the piece was not asked for.
  bool list_arrived(std::size_t source, std::uint64_t offset, std::uint64_t total,
                    std::span<const std::byte> piece);
  /// A complete list.
  std::shared_ptr<const std::string> list(std::size_t source);

  // Chunks, after begin_chunks().

  void begin_chunks(std::uint32_t self, std::vector<std::uint32_t> readers,
                    const std::function<bool(std::size_t)>& missing, RingChunks chunks);
  std::uint32_t bytes(std::size_t chunk) const { return chunks_.bytes(chunk); }
  /// Waits for a chunk to read from the source; nullopt when all chunks are here, or after stop().
  std::optional<std::size_t> take_read();
  /// What decides, locked as long as the result lives, which must not wait for anything. Then all threads look at what has
  /// changed, or none, if they do not wait for it.
  template <typename Decider>
  class Decisions {
   public:
    Decisions(Ring& ring, Decider& decider, bool wakes)
        : ring_(ring), decider_(decider), wakes_(wakes), lock_(ring.mutex_) {}
    ~Decisions() {
      if (wakes_) ring_.changed();
    }
    Decisions(const Decisions&) = delete;
    Decisions& operator=(const Decisions&) = delete;
    Decider* operator->() { return &decider_; }

   private:
    Ring& ring_;
    Decider& decider_;
    const bool wakes_;
    const std::lock_guard<std::mutex> lock_;
  };
  Decisions<ListRelay> lists() { return {*this, relay_, false}; }
  Decisions<RingNode> node() { return {*this, *node_, true}; }
  Decisions<RingNode> look() { return {*this, *node_, false}; }
  /// Of the lists too, if they are not complete.
  void predecessor_lost();
  /// Makes a chunk available to the successor while it is stored.
  void checked(CheckedChunk chunk);
  /// The same of one that came from the predecessor: a thread takes it, and stores it.
  void arrived(CheckedChunk chunk);
  /// Waits for such a chunk; nullopt when all chunks are here, or after stop().
  std::optional<CheckedChunk> take_arrived();
  void stored(std::size_t chunk);
  bool finished();
  /// As in CheckedChunk; `self` for a chunk that was here from the start.
  std::uint32_t origin(std::size_t chunk) const;
  /// Waits until all chunks are here, or for this long.
  void wait_for_end(std::chrono::milliseconds wait);
  /// The node fails, or ends: nobody waits any longer.
  void stop();

  // For the threads that serve the successor. A new connection of it is a new generation; connections of older ones end.

  struct Outgoing {
    enum class Kind { nothing, list, chunk, lacks, stale };
    Kind kind = Kind::nothing;
    ListRelay::Piece piece{};
    std::string text{};  ///< of the piece
    bool idle = false;
    CheckedChunk chunk{};
  };

  void successor_wants_lists(std::uint64_t generation, const std::vector<std::size_t>& sources);
  /// Throws PeerError if the successor has another list of files.
  void successor_wants_chunks(std::uint64_t generation, std::vector<std::byte> bits);
  /// If not `reads`, this node reads them for the successor.
  void successor_reads(const std::vector<std::size_t>& chunks, bool reads);
  /// Waits for something to send, or for this long. `buffers` gives memory for what must be read back.
  Outgoing next_send(std::uint64_t generation, std::chrono::milliseconds wait, ChunkBuffers& buffers);
  struct Progress {
    std::size_t to_send = 0;  ///< chunks that are here, wanted, and not sent
    bool idle = false;        ///< RingNode::idle()
  };
  Progress progress();
  /// Returns when no thread uses `chunks` any longer; none will.
  void close();
  /// The successor counts this node as lost.
  void leave();
  bool left();

 private:
  bool ended() const { return stopped_ || (node_ && node_->finished()); }
  void changed();
  bool can_send(std::uint64_t generation) const;
  void keep(CheckedChunk chunk);
  void read_for_successor(std::unique_lock<std::mutex>& lock, Outgoing& out, ChunkBuffers& buffers);

  const std::uint32_t place_;
  const std::uint32_t nodes_;
  mutable std::mutex mutex_;
  std::condition_variable to_send_, to_read_, to_store_, end_, unused_;
  ListRelay relay_;
  std::vector<std::string> texts_;                         // that arrive
  std::vector<std::shared_ptr<const std::string>> lists_;  // that are complete
  std::optional<RingNode> node_;
  RingChunks chunks_;
  std::vector<std::uint32_t> origins_;
  std::map<std::size_t, CheckedChunk> in_memory_;  // those that are stored now, and those of recent_
  std::deque<std::size_t> recent_;                 // stored a moment ago
  std::deque<CheckedChunk> arrived_;
  std::uint64_t generation_ = 0;
  std::optional<std::vector<std::byte>> wanted_;  // by the successor, before begin_chunks()
  int users_ = 0;                                 // of chunks_, outside the mutex
  bool stopped_ = false;
  bool closed_ = false;
  bool left_ = false;
};

}  // namespace lockstep::transfer
