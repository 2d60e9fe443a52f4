// Puts sources on all nodes of a step (exchange.h describes how they share the work). The nodes agree in few rounds at the
// rendezvous, whatever the number of sources:
//
//   hello      the releases of all nodes; the first node says what each source is, and which ones another process copies there
//   states     each says whether it has a source already, needs it, or another process copies it there; it learns its
//              predecessor, and whether a node has each source
//   contents   each has all its chunks; it gives one digest of what it got, and says whether it still lacks a source
//   identify   only if the first node has left: what the next one sees
//   details    only if the digests differ: those of each source
//
// If a node still lacks a source, because another process copied it there or its own copy was damaged, it waits for the other
// process, holding no lock, and there is another ring with its two rounds. Very many sources are put in groups, because each
// one needs some open files; each group has its two rounds.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "staging/transfer/exchange/peer_group.h"
#include "staging/transfer/put_context.h"

namespace lockstep::transfer {

/// Calls `done` for each source that was put, in order. A source is left out if all nodes have staged its present version.
/// `contexts` has one for each source; they must stay where they are. Throws Error if this node cannot put a source, or if
/// other nodes got other bytes.
void cooperative_put(PeerGroup& peers, const std::vector<std::unique_ptr<PutContext>>& contexts,
                     const std::function<void(const PutContext& context, FoundCopy copy)>& done);

}  // namespace lockstep::transfer
