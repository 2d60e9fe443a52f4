// Puts sources on all nodes of a group (exchange.h describes how they share the work). The nodes agree in few rounds at
// the rendezvous, whatever the number of sources:
//
//   places     (hello) the releases of all nodes, and which version of each source an earlier step of the job has staged;
//              the first node says what each source is: its object, whether it is a pack
//   states     each says whether it has an object already, needs it, or waits for another process of its node; it learns
//              its part of the chains
//   contents   each has all its chunks; it says what content it got, and whether a node waits for another process or could
//              not send what it has: if none, no node is asked for chunks from then on
//   end        only then: these nodes have got the data too
//   identify   only if the first node has left: what the next one sees
//
// Very many sources are put in groups, because each one needs some open files; then there are more rounds.
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
