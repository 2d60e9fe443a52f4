// One ring on one node: what the threads that receive, read, store and send share. ring_node.h and list_relay.h decide; this
// class lets the threads wait, and keeps the lists and the chunks that are not stored yet.
//
// Threads: safe from any.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/exchange/list_relay.h"
#include "staging/transfer/exchange/recent_chunks.h"
#include "staging/transfer/exchange/ring_node.h"

namespace lockstep::transfer {

/// The chunks of a ring on this node, from when its lists are here. Safe from any thread.
struct RingChunks {
  std::function<std::uint32_t(std::size_t chunk)> bytes;
  /// The digest with which a chunk was stored.
  std::function<pack::Digest(std::size_t chunk)> digest;
  /// A stored chunk that is still in memory, or null.
  std::function<LentChunk(std::size_t chunk)> lend;
  /// Reads a stored chunk. False if it cannot be read.
  std::function<bool(std::size_t chunk, std::span<std::byte> into)> read;
  /// The successor got other bytes than those of the digest, or this node could not read them.
  std::function<void(std::size_t chunk)> damaged;
};

class Ring {
 public:
  Ring(std::uint32_t place, std::uint32_t nodes, const std::vector<ListRelay::From>& lists);

  std::uint32_t place() const { return place_; }
  std::uint32_t nodes() const { return nodes_; }

  // Lists of files, by the source's number in the ring.

  std::optional<std::size_t> next_to_make();
  void list_made(std::size_t source, std::shared_ptr<const std::string> list);
  std::vector<std::size_t> wanted_lists();
  /// False if the piece was not asked for.
  bool list_arrived(std::size_t source, std::uint64_t offset, std::uint64_t total,
                    std::span<const std::byte> piece);
  bool lists_complete();
  /// A complete list.
  std::shared_ptr<const std::string> list(std::size_t source);

  // Chunks, after begin_chunks().

  void begin_chunks(std::uint32_t self, std::vector<std::uint32_t> readers,
                    const std::function<bool(std::size_t)>& missing, RingChunks chunks);
  std::size_t size() const;
  std::uint32_t bytes(std::size_t chunk) const { return chunks_.bytes(chunk); }
  /// Waits for a chunk to read from the source; nullopt when all chunks are here, or after stop().
  std::optional<std::size_t> take_read();
  std::vector<std::byte> wanted_chunks();
  std::vector<std::size_t> take_cancelled();
  bool begin_receiving(std::size_t chunk);
  void not_received(std::size_t chunk);
  void arrived_damaged(std::size_t chunk);
  void predecessor_lacks(std::size_t chunk);
  std::vector<std::size_t> hand_over();
  /// Of the lists too, if they are not complete.
  void predecessor_lost();
  /// Makes a chunk available to the successor while it is stored. Its memory is released by stored().
  /// `origin` is the node of the step that read it from the source.
  void checked(std::size_t chunk, LentChunk data, const pack::Digest& digest, std::uint32_t origin);
  void stored(std::size_t chunk);
  bool all_begun();
  bool finished();
  /// As in checked(); `self` for a chunk that was here from the start.
  std::uint32_t origin(std::size_t chunk) const;
  /// Waits until all chunks are here, or for this long.
  void wait_for_end(std::chrono::milliseconds wait);
  void wait_until_end();
  /// The node fails, or ends: nobody waits any longer.
  void stop();

  // For the threads that serve the successor. A new connection of it is a new generation; connections of older ones end.

  struct Outgoing {
    enum class Kind { nothing, list, chunk, lacks, stale };
    Kind kind = Kind::nothing;
    ListRelay::Piece piece{};
    std::string text{};  ///< of the piece
    std::size_t chunk = 0;
    bool idle = false;
    std::uint32_t origin = 0;
    pack::Digest digest{};
    LentChunk data{};
  };

  void successor_wants_lists(std::uint64_t generation, const std::vector<std::size_t>& sources);
  /// Throws PeerError if the successor has another list of files.
  void successor_wants_chunks(std::uint64_t generation, std::vector<std::byte> bits);
  void successor_reads(const std::vector<std::size_t>& chunks);
  void successor_hands_over(const std::vector<std::size_t>& chunks);
  void successor_got_damaged(std::size_t chunk);
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
  void read_for_successor(std::unique_lock<std::mutex>& lock, Outgoing& out, ChunkBuffers& buffers);

  struct Storing {
    LentChunk data;
    pack::Digest digest{};
  };

  const std::uint32_t place_;
  const std::uint32_t nodes_;
  mutable std::mutex mutex_;
  std::condition_variable to_send_, to_read_, end_, unused_;
  ListRelay relay_;
  std::vector<std::string> texts_;                         // that arrive
  std::vector<std::shared_ptr<const std::string>> lists_;  // that are complete
  std::optional<RingNode> node_;
  RingChunks chunks_;
  std::vector<std::uint32_t> origins_;
  std::map<std::size_t, Storing> storing_;
  std::uint64_t generation_ = 0;
  std::optional<std::vector<std::byte>> wanted_;  // by the successor, before begin_chunks()
  int users_ = 0;                                 // of chunks_, outside the mutex
  bool stopped_ = false;
  bool closed_ = false;
  bool left_ = false;
};

}  // namespace lockstep::transfer
