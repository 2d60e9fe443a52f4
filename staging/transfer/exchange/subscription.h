// Takes the chunks of one source from this node's predecessor in the chain (exchange.h), and from the one before it if
// a predecessor is lost.
//
// A connection that breaks is made again. A predecessor is passed over if it is lost: the rendezvous says so, it refuses
// this node, it breaks the protocol, or it sends no data for some seconds, although the rendezvous hears from it. Time in
// which this process is stopped does not count. If the predecessors that could have the data are lost, or three
// that are still running cannot be reached, this node reads what it lacks from the source.
//
// Threads: run() is the work of one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "staging/pack/digest.h"
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
    std::vector<Node> predecessors;  ///< the nearest first
    std::vector<Node>
        holders;  ///< those of them that have the whole source; if there are any, nobody reads it
    PeerTimeouts timeouts{};
    std::function<std::string(Node)> name;  ///< for messages
    std::function<std::unique_ptr<PeerLink>(Node)> connect;
    /// Those of these nodes that the rendezvous does not hear from, or that others have passed over. `passed_over`
    /// tells the rendezvous that this node has passed over that one.
    std::function<std::vector<Node>(const std::vector<Node>& asked, std::optional<Node> passed_over)> lost;
    std::function<std::uint32_t(std::size_t chunk)> bytes;
    std::function<ChunkBuffers::Buffer(std::uint32_t bytes)> buffer;
    /// Takes a chunk that arrived, to be stored soon in another thread, which then calls ChainSchedule::stored().
    std::function<void(ArrivedChunk)> store;
    /// Takes a line for the user.
    std::function<void(const std::string&)> note;
  };

  /// `schedule` must outlive this object.
  Subscription(ChainSchedule& schedule, Options options)
      : schedule_(schedule), options_(std::move(options)) {}

  /// Returns when all chunks are here, or when this node reads the rest from the source.
  void run();

 private:
  struct Lost {
    std::string why;
    bool running = false;  ///< as far as the rendezvous knows
    bool ended = false;    ///< its process ended, which is reported elsewhere
  };

  std::optional<Lost> receive_from(Node node);
  void pass_over(Node node, const Lost& lost);
  bool is_lost(Node node) { return !options_.lost({node}, {}).empty(); }
  void talk(PeerLink& link, Node node);
  void send_changes(PeerLink& link, Node node);
  void take_line(PeerLink& link, const std::string& line);
  void take_chunk(PeerLink& link, const std::vector<std::string>& words);

  ChainSchedule& schedule_;
  Options options_;
  bool received_ = false;  // a chunk came on the current connection
  bool idle_ = false;      // the predecessor can help
  int damaged_ = 0;
  std::vector<std::size_t> again_;
};

}  // namespace lockstep::transfer
