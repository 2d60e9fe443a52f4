// One node's work in one ring (exchange.h): gets the lists of files and the chunks of the ring's sources, stores them, and
// passes them on.
//
// Threads: one at a time; run() starts its own and has joined them when it returns. The successor is served until the
// object ends.
#pragma once

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/rendezvous/ring_states.h"
#include "staging/transfer/exchange/chunk_shares.h"
#include "staging/transfer/exchange/peer_group.h"
#include "staging/transfer/exchange/ring.h"
#include "staging/transfer/exchange/ring_client.h"
#include "staging/transfer/source_put.h"

namespace lockstep::transfer {

class RingPut {
 public:
  /// `sources` are those of the ring, in its order; `held` tells for each whether a node has it, so that nobody reads it from
  /// the source. `number` is that of the ring within the step. The references must outlive this object.
  RingPut(PeerGroup& peers, std::size_t number, RingPart part, std::vector<SourcePut*> sources,
          const std::vector<bool>& held);
  ~RingPut() { peers_.exchange().withdraw(number_); }
  RingPut(const RingPut&) = delete;
  RingPut& operator=(const RingPut&) = delete;

  /// Returns when this node has all sources of the ring, checked and on disk. If it has no room for copies beside those of
  /// another process, leaves the ring, and drops what it has begun. Throws Error.
  void run();
  /// The sources whose chunks the predecessor could not send, or sent damaged.
  std::vector<Suspect> suspects() const { return {suspects_.begin(), suspects_.end()}; }

 private:
  std::vector<ListRelay::From> lists_from() const;
  RingClient::Options client_options();
  void get_all();
  void make_lists();
  void prepare();
  void move_chunks(RingClient& client);
  std::size_t max_lanes() const;
  void read_source();
  void store_arrivals();
  void finish_copies();
  SourcePut& source_of(const StreamPlan::Place& place) { return *sources_[place.source]; }

  PeerGroup& peers_;
  std::size_t number_;
  RingPart part_;
  std::vector<SourcePut*> sources_;
  std::vector<bool> held_;
  std::shared_ptr<Ring> ring_;
  std::optional<StreamPlan> plan_;
  std::set<Suspect> suspects_;
};

}  // namespace lockstep::transfer
