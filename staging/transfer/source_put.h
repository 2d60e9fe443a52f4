// One source on one node of a group, from the moment at which the nodes know what it is until its copy is published.
//
// Threads: one at a time; finish() of several sources at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>

#include "staging/rendezvous/chain_directory.h"
#include "staging/transfer/exchange/chunk_provider.h"
#include "staging/transfer/new_copy.h"
#include "staging/transfer/put_context.h"

namespace lockstep::transfer {

class SourcePut {
 public:
  /// `context` must outlive this object.
  SourcePut(const PutContext& context, Manifest manifest)
      : context_(context), lookup_(context, std::move(manifest)) {}

  const PutContext& context() const { return context_; }

  /// Whether this node has the source. If it needs it, this process is the one that copies it. Throws Error.
  SourceState find();

  /// Whether find() or wait() has found the source, or it was copied.
  bool is_here() const { return std::holds_alternative<Held>(state_) || taken_; }
  bool is_taken() const { return taken_; }
  /// Of a source that another process copies, or whose copy was removed: waits until it is here, or until this process is
  /// the one that copies it. Throws Error.
  void wait();

  /// The list of files that this node can give without looking at the source; nullptr if it must come from another node.
  std::shared_ptr<const std::string> own_list();
  /// Reads the list from the source, or takes another node's, and begins the copy if this node needs the source. Throw
  /// Error.
  std::shared_ptr<const std::string> make_list();
  std::shared_ptr<const std::string> take_list(std::string list);

  /// With the list: gets everything ready for the exchange of chunks. `check_source`: checks that the source has all files
  /// of a pack. Throws Error.
  void prepare(bool check_source);
  const ChunkPlan& plan() const { return copies() ? copy().plan() : held().chunks->plan(); }
  bool lacks(std::size_t chunk) const { return copies() && !copy().store().has(chunk); }
  /// As in StreamChunks.
  bool read(std::size_t chunk, std::span<std::byte> into, pack::Digest& digest);
  LentChunk lend(std::size_t chunk, pack::Digest& digest);
  /// Of a source that this node needs.
  NewCopy& copy() const { return *std::get<Copying>(state_); }
  bool needed() const { return copies() && !taken_; }

  /// When all chunks are here: checks and syncs the copy. `origin` has the node that read a chunk from the source.
  void finish(std::uint32_t self, const std::function<std::uint32_t(std::size_t chunk)>& origin,
              const std::function<std::string(std::uint32_t node)>& name);
  /// One digest of all files that no index describes; "" for a pack, or if another process copies the source.
  std::string content() const;

  /// Whether a part of this node's copy, which only a quick check had found good, could not be given to another node.
  bool damaged() const { return is_served() && held().chunks->damaged(); }
  /// Checks all of such a copy, and removes it if it is damaged. It must no longer be served.
  void remove_if_damaged();

  /// The copy of this node; waits for it if another process makes it. read() goes on reading it. Throws Error.
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
  std::shared_ptr<const std::string> list_;
  std::variant<Unknown, Held, Locked, Begun, Copying> state_;
};

}  // namespace lockstep::transfer
