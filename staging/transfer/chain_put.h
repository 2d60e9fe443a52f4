// One node's work in one chain (exchange.h): gets the lists of files and the chunks of the chain's sources, stores them,
// and passes them on.
//
// Threads: one at a time; run() starts its own and has joined them when it returns. The successor is served until the
// object ends.
#pragma once

#include <atomic>
#include <optional>
#include <vector>

#include "staging/transfer/exchange/arrivals.h"
#include "staging/transfer/exchange/peer_group.h"
#include "staging/transfer/exchange/subscription.h"
#include "staging/transfer/source_put.h"

namespace lockstep::transfer {

class ChainPut {
 public:
  /// `sources` are those of the part, in its order. `batch` tells apart several calls of Rendezvous::chains(). The
  /// references must outlive this object.
  ChainPut(PeerGroup& peers, std::size_t batch, ChainPart part, std::vector<SourcePut*> sources);
  ~ChainPut() { peers_.exchange().withdraw(topic_); }
  ChainPut(const ChainPut&) = delete;
  ChainPut& operator=(const ChainPut&) = delete;

  /// Returns when this node has all sources of the chain, checked and on disk. Throws Error.
  void run();

  /// Whether a predecessor should have had chunks that it could not send.
  bool predecessor_lacked() const { return predecessor_lacked_; }

 private:
  std::vector<std::size_t> lists_from_predecessor();
  Subscription::Options subscription();
  void prepare();
  void move_chunks(Subscription& subscription);
  std::size_t lanes() const;
  void read_share(const std::function<bool()>& stop);
  void store_arrivals();
  void finish_copies();
  std::size_t index_of(std::size_t number) const;
  SourcePut& source(std::size_t number) { return *sources_[index_of(number)]; }
  NewCopy& copy_of(const StreamPlan::Place& place) { return sources_[place.source]->copy(); }

  PeerGroup& peers_;
  std::size_t batch_;
  ChainPart part_;
  std::vector<SourcePut*> sources_;
  std::size_t topic_;
  std::optional<StreamPlan> plan_;
  std::optional<ChainSchedule> schedule_;
  Arrivals arrivals_;
  std::atomic<bool> predecessor_lacked_ = false;
};

}  // namespace lockstep::transfer
