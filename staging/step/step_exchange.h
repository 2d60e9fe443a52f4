// How a node of a step passes chunks on to the step's other nodes.
//
// Threads: safe from any.
#pragma once

#include "staging/step/stage_step.h"
#include "staging/transfer/exchange/exchange.h"

namespace lockstep::transfer {

/// Throws Error where srun has no rendezvous, UsageError where the call's ports make no sense.
Exchange::Options exchange_of(const StepCall& call);

}  // namespace lockstep::transfer
