// The settings with which a node of a step exchanges chunks with the other nodes.
//
// Threads: safe from any.
#pragma once

#include "staging/step/stage_step.h"
#include "staging/transfer/exchange/exchange.h"

namespace lockstep::transfer {

/// Throws Error if srun has no rendezvous, UsageError if `call.ports` is not LOW-HIGH.
Exchange::Options exchange_of(const StepCall& call);

}  // namespace lockstep::transfer
