// The settings with which a node of a step exchanges chunks with the other nodes.
//
// Threads: safe from any.
#pragma once

#include <string>

#include "staging/rendezvous/rendezvous_outcome.h"
#include "staging/transfer/exchange/exchange.h"

namespace lockstep::transfer {

/// `ports`: LOW-HIGH, or "". Throws Error if srun has no rendezvous, UsageError if `ports` is wrong.
Exchange::Options exchange_of(const Hello& hello, const std::string& ports);

}  // namespace lockstep::transfer
