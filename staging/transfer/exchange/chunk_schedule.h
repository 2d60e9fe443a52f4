// Tracks which chunks a node still needs, and where to get them. A node reads the chunks that it owns from the source,
// in order. It asks the owner for any other chunk, then the successor, and reads the chunk itself if
// neither can give it. So each chunk is read once if nothing fails, and by the successor as well if the owner is lost.
// No two nodes wait for each other for one chunk, so no node waits for ever. The owner reads the chunk, or asks the
// successor to read it and tells that to every node that asks. The successor reads the chunk or waits for the owner.
// All other nodes wait for one of the two.
//
// A slow owner gets help: a node that has read all that it must tells its peers that it is idle, and an owner
// asks an idle successor for chunks from the end of the owner's share. The successor reads the chunks for
// which the owner asks.
//
// Threads: safe from any.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <vector>

namespace lockstep::transfer {

/// Decides which node reads which chunk from the source. Every chunk has one owner and one successor, which replaces the
/// owner if the owner is lost. Both follow from the list of nodes, so that all nodes know them without a message. Every
/// node owns an equal share of the chunks, and the other nodes are successors of equal parts of that share.
class ChunkOwners {
 public:
  /// `nodes` take part; `holders` are those of them that have the whole object. If there are any, they own all chunks;
  /// the other nodes are the successors of a single holder.
  ChunkOwners(const std::vector<std::uint32_t>& nodes, const std::vector<std::uint32_t>& holders);

  std::uint32_t owner(std::size_t chunk) const { return owners_[chunk % owners_.size()]; }
  /// Another node than the owner, unless there is only one.
  std::uint32_t successor(std::size_t chunk) const;

 private:
  std::vector<std::uint32_t> owners_;
  std::vector<std::uint32_t> others_;  // of a single owner
};

class ChunkSchedule {
 public:
  using Node = std::uint32_t;

  /// `self` is this node's number, `nodes` is more than the highest number of all nodes. `missing` says
  /// whether this node needs a chunk.
  ChunkSchedule(std::size_t chunks, ChunkOwners owners, Node self, std::size_t nodes,
                const std::function<bool(std::size_t chunk)>& missing);

  /// The next chunk to read from the source. Waits until there is one; nullopt when all chunks are here, or
  /// after stop().
  std::optional<std::size_t> take_own();

  /// The next chunk to ask another node for, if there is one.
  std::optional<std::size_t> take(Node node);

  /// A chunk that was taken is stored.
  void done();

  /// The connection broke before `node` answered for this chunk: it is asked again, unless it is given up.
  void put_back(std::size_t chunk, Node node);

  /// `node` cannot give this chunk: the successor is asked after the owner, then this node reads it.
  void refused(std::size_t chunk, Node node);

  /// `node` is lost: all its chunks come from elsewhere.
  void give_up(Node node);

  /// Another node asks for a chunk that is not here. True if it will be here; if not, the other node gets it
  /// elsewhere.
  bool expects(std::size_t chunk, Node asker);

  /// Whether this node has no chunk left that it must read and has not begun.
  bool idle() const;
  /// Notes that another node is idle and can read chunks of this node's share.
  void help_from(Node node);

  /// The node that a chunk came from; this one if it read the chunk itself.
  Node from(std::size_t chunk) const;

  bool finished() const;
  void stop();
  /// Waits until something changes, or for this long.
  void wait_for_change(int milliseconds) const;

 private:
  std::optional<std::size_t> next(Node node);
  std::optional<std::size_t> next_for_helper(Node node);
  void assign(std::size_t chunk, Node node);
  Node provider(std::size_t chunk) const;
  bool ended() const { return stopped_ || remaining_ == 0; }

  const ChunkOwners owners_;
  const Node self_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<Node> from_;         // of each chunk
  std::vector<bool> taken_;        // chunks that are here, being read, or asked for
  std::vector<std::size_t> next_;  // of each node: no chunk before this one can be taken from it
  std::vector<std::size_t>
      helper_end_;  // of each idle node: it was asked for what this node owns from here on
  std::vector<bool> given_up_;
  std::size_t remaining_ = 0;
  bool stopped_ = false;
};

}  // namespace lockstep::transfer
