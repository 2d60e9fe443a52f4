// One node's work in one ring (exchange.h): SourcePut is one source, from the moment at which the nodes know what it is until its
// copy is published; RingPut gets the lists of files and the chunks of the ring's sources, stores them, and passes them on.
//
// Threads: one at a time; SourcePut::finish() of several sources at the same time; its digest() and read() from any. run() starts
// its own and has joined them when it returns. The successor is served until the RingPut ends.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/transfer/copy/chunk_plan.h"
#include "staging/transfer/copy/chunk_store.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/exchange/ring.h"
#include "staging/transfer/exchange/ring_client.h"
#include "staging/transfer/new_copy.h"
#include "staging/transfer/source_lookup.h"

namespace lockstep::transfer {

class SourcePut {
 public:
  /// `context` must outlive this object.
  SourcePut(const PutContext& context, Manifest manifest)
      : context_(context), lookup_(context, std::move(manifest)) {}

  const PutContext& context() const { return context_; }

  /// Whether this node has the source. If it needs it, and `lock`, this process is the one that copies it; else another
  /// process of the node may. Never waits. Throws Error.
  SourceState state(bool lock);
  /// Of a source that another process copies: this one makes a copy of its own. Throws Error.
  void copy_anyway(const std::string& step);
  bool copies_anyway() const { return copies_anyway_; }
  /// Drops what was begun.
  void give_up() {
    state_ = Unknown{};
    copies_anyway_ = false;
  }

  /// Whether state() or wait() has found the source, or it was copied.
  bool is_here() const { return std::holds_alternative<Held>(state_) || taken_; }
  bool is_taken() const { return taken_; }
  bool packed() const { return lookup_.manifest().packed(); }
  /// Of a source that another process copies: waits until it is here, or until nobody copies it. Holds no lock afterwards
  /// if it is not here. Throws Error.
  void wait();

  /// The list of files that this node can give without looking at the source; nullptr if it must come from another node.
  std::shared_ptr<const std::string> own_list();
  /// Reads the list from the source, and begins the copy if this node needs the source. Throws Error.
  std::shared_ptr<const std::string> make_list();
  /// Takes another node's list.
  void take_list(std::shared_ptr<const std::string> list) { list_ = std::move(list); }

  /// With the list: gets everything ready for the exchange of chunks. `check_source`: checks that the source has all files
  /// of a pack. Throws Error.
  void prepare(bool check_source);
  const ChunkPlan& plan() const { return copies() ? copy().plan() : held().chunks->plan(); }
  bool lacks(std::size_t chunk) const { return copies() && !copy().store().has(chunk); }
  /// As in RingChunks.
  pack::Digest digest(std::size_t chunk) const;
  bool read(std::size_t chunk, std::span<std::byte> into);
  /// Of a source that this node needs.
  NewCopy& copy() const { return *std::get<Copying>(state_); }
  bool needed() const { return copies() && !taken_; }

  /// When all chunks are here: checks and syncs the copy. `origin` has the node that read a chunk from the source.
  void finish(std::uint32_t self, const std::function<std::uint32_t(std::size_t chunk)>& origin,
              const std::function<std::string(std::uint32_t node)>& name);
  /// One digest of all files that no index describes; "" for a pack, or if another process copies the source.
  std::string content() const;

  /// Another node got wrong bytes from this copy, or none. If it was just made, reads it back; throws Error if the disk is bad.
  void suspect();
  /// Checks all of a suspect copy that was here before, unless it is the result already. If it is damaged, removes it and returns
  /// true. It must no longer be served.
  bool remove_if_damaged();

  /// The copy of this node; makes one alone if there is none. read() goes on reading it. Throws Error.
  FoundCopy take_result();
  /// Keeps what is copied for the next call.
  void keep() noexcept {
    if (copies()) copy().keep();
  }

 private:
  // The states in their order. A source is either held, or locked, begun and copied.
  struct Unknown {};  // not looked for, copied by another process, or removed
  struct Held {
    FoundCopy copy;
    std::unique_ptr<ObjectChunks> chunks{};  // from prepare() on; also after take_result()
  };
  using Locked = CopyLock;
  using Begun = BegunCopy;  // there is a list
  using Copying = std::unique_ptr<NewCopy>;

  SourceState set(SourceLookup::Result result);
  bool copies() const { return std::holds_alternative<Copying>(state_); }
  const Held& held() const { return std::get<Held>(state_); }
  bool is_served() const { return std::holds_alternative<Held>(state_) && held().chunks != nullptr; }
  std::shared_ptr<const std::string> keep_list(std::string list);

  const PutContext& context_;
  SourceLookup lookup_;
  bool taken_ = false;  // the result
  bool copies_anyway_ = false;
  std::shared_ptr<const std::string> list_;
  std::variant<Unknown, Held, Locked, Begun, Copying> state_;
  bool suspect_ = false;
};

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
  void get_all();
  void make_lists();
  void prepare();
  void move_chunks(RingClient& client);
  std::size_t max_lanes() const;
  void read_source();
  void store_arrivals();
  void finish_copies();
  const PutContext& context() const { return sources_.front()->context(); }
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
