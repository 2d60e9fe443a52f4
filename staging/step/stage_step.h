// Stages a step's sources on one of its nodes, as the plugin requests it: puts them into the cache, links
// them into the job's folder, agrees with the step's other nodes, and reports the result.
//
// Threads: main's thread.
#pragma once

#include "staging/rendezvous/rendezvous.h"
#include "staging/step/request.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/put.h"

namespace lockstep::transfer {

/// A request, and the same as the libraries take it.
struct StepCall : StepRequest {
  explicit StepCall(const StepRequest& request);

  Hello hello;
  RendezvousAddress srun;
  PutOptions put;  ///< without the functions, which the step sets
  Exchange::Options exchange;
};

/// Returns when the step may start, or ends the process with code 0 then. If the step may not start, ends the process with
/// code 1, after one line from here or from srun has said why.
void stage_step(const StepCall& call);

}  // namespace lockstep::transfer
