// Takes all that a node lacks from its predecessor in a chain (exchange.h), and from the one before it if a predecessor is
// lost: first the lists of files, then the chunks.
//
// A connection that breaks is made again. A predecessor is passed over if it is lost: the rendezvous says so, it refuses
// this node, it breaks the protocol, or it sends no data for some seconds, although the rendezvous hears from it. Time in
// which this process is stopped does not count. If no predecessor is left, or three that are still running cannot be
// reached, this node reads what it lacks from the source.
//
// Threads: one at a time; each lane has its own Subscription.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "staging/pack/digest.h"
#include "staging/rendezvous/chain_directory.h"
#include "staging/transfer/copy/chunk_buffers.h"
#include "staging/transfer/exchange/chain_schedule.h"
#include "staging/transfer/exchange/peer_link.h"

namespace lockstep::transfer {

struct ArrivedChunk {
  std::size_t chunk = 0;
  ChunkBuffers::Buffer data;
  pack::Digest digest{};
  ChainSchedule::Node origin = 0;
};

class Subscription {
 public:
  using Node = ChainSchedule::Node;

  struct Options {
    std::size_t topic = 0;
    std::size_t lane = 0;  ///< of the schedule
    std::optional<ChainNode> predecessor;
    PeerTimeouts timeouts{};
    std::function<std::string(Node)> name;  ///< for messages
    std::function<std::unique_ptr<PeerLink>(Node)> connect;
    /// Tells the rendezvous that this node has passed over its predecessor; returns the next one.
    std::function<NextPredecessor(Node passed_over)> pass_over;
    /// Whether the rendezvous does not hear from the node, or others have passed it over.
    std::function<bool(Node)> is_lost;
    /// The sources whose lists of files come from the predecessor, in order.
    std::vector<std::size_t> lists;
    std::function<void(std::size_t source, std::string list)> take_list;
    /// No other node can send the list: makes it from the source.
    std::function<void(std::size_t source)> make_list;
    /// The chunks of a source of the chain: the first, and the one after the last.
    std::function<std::pair<std::size_t, std::size_t>(std::size_t source)> chunks_of;
    std::function<std::uint32_t(std::size_t chunk)> bytes;
    std::function<ChunkBuffers::Buffer(std::uint32_t bytes)> buffer;
    /// Takes a chunk that arrived, to be stored soon in another thread, which then calls ChainSchedule::stored().
    std::function<void(ArrivedChunk)> store;
    /// The predecessor cannot send a chunk, although it should have it. Called by several lanes at a time.
    std::function<void()> predecessor_lacks;
    /// Takes a line for the user.
    std::function<void(const std::string&)> note;
  };

  explicit Subscription(Options options) : options_(std::move(options)) {}

  /// Returns when all lists are here.
  void get_lists();
  /// For another lane of the same chain, after get_lists().
  Subscription lane(std::size_t lane) const {
    Options options = options_;
    options.lane = lane;
    return Subscription(std::move(options));
  }
  /// Then: returns when all chunks are here, or when this node reads the rest from the source. The schedule must outlive
  /// this object.
  void get_chunks(ChainSchedule& schedule);

 private:
  struct Lost {
    std::string why;
    bool running = false;  ///< as far as the rendezvous knows
    bool ended = false;    ///< its process ended, which is reported elsewhere
  };

  bool done() const { return schedule_ != nullptr ? schedule_->finished() : options_.lists.empty(); }
  void follow_predecessors();
  std::optional<Lost> receive_from(Node node);
  void pass_over(ChainNode node, const Lost& lost);
  void apply_losses();
  void make_lists();
  void talk(PeerLink& link, Node node);
  void send_changes(PeerLink& link);
  void take_line(PeerLink& link, const std::string& line);
  void take_list(PeerLink& link, const std::vector<std::string>& words);
  void take_chunk(PeerLink& link, const std::vector<std::string>& words);

  Options options_;
  ChainSchedule* schedule_ = nullptr;
  std::unique_ptr<PeerLink> link_;
  int unreachable_ = 0;    // predecessors that are still running
  bool received_ = false;  // data came on the current connection
  bool idle_ = false;      // the predecessor can help
  int damaged_ = 0;
  std::vector<std::size_t> damaged_chunks_;
  std::vector<std::uint32_t> lost_places_;   // of the chain, to be applied to the schedule
  std::vector<std::size_t> without_holder_;  // sources, to be applied to the schedule
};

}  // namespace lockstep::transfer
