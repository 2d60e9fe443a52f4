// Puts one source on all nodes of a group (exchange.h describes how they share the work).
//
// The nodes agree in rounds at the rendezvous, each named by the source's place in the call:
//   there    which nodes take part and can read the source
//   source   the first of them says what the source is: its object, whether it is a pack
//   have     each says whether it has the object already, needs it, or waits for another job of its node
//   end      each has all its chunks; it says what content it got, and which nodes sent corrupt bytes. From then
//            on no node is asked for chunks
//   damage   only if the contents differ: each says whether it found its own copy damaged
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "staging/transfer/exchange/peer_group.h"
#include "staging/transfer/put_context.h"

namespace lockstep::transfer {

/// `topic` is the source's place in the call. Throws Error if this node cannot put it, or if other nodes got
/// other bytes.
FoundCopy cooperative_put(PeerGroup& peers, const PutContext& context, std::size_t topic);

}  // namespace lockstep::transfer
