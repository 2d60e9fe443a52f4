// Puts one source on all nodes of a circle (exchange.h says how they share the work).
//
// In rounds at the rendezvous, named by the source's place in the call:
//   there    who is there, and can read the source
//   source   the first of them says what the source is: which object, how long its list
//   have     each says whether it has the object already, copies it now, or waits for who does on its node
//   end      each has all its chunks, says what they came to and who sent wrong ones; from then on nobody is
//            asked for any
//   damage   where they came to different bytes: who found its own copy damaged
//
// Threads: one at a time.
#pragma once

#include <cstddef>

#include "staging/transfer/exchange/circle.h"
#include "staging/transfer/put_one.h"

namespace lockstep::transfer {

/// `one` is resolved. Throws Error where this node cannot put it, or other nodes got other bytes.
void put_together(Circle& circle, PutOne& one, std::size_t topic, const PutOptions& options);

}  // namespace lockstep::transfer
