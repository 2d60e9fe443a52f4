// Stages a step's sources on one of its nodes, as the plugin requests it: puts them into the cache, links
// them into the job's folder, agrees with the step's other nodes, and reports the result.
//
// Threads: main's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "staging/rendezvous/rendezvous_messages.h"
#include "staging/transfer/exchange/exchange.h"
#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

/// Whether the step waits until its data is staged, or reads from the source meanwhile.
enum class StepMode : std::uint8_t { block, background };
/// If staging fails, the step ends, or it reads from the source.
enum class OnError : std::uint8_t { fail, source };

struct StepCall {
  Hello hello;
  std::vector<std::string> sources;
  std::string problem;  ///< why this node cannot stage, or ""
  StepMode mode = StepMode::block;
  OnError on_error = OnError::fail;
  bool cooperate = true;
  std::string record;          ///< folder of the step's records; "" for none
  std::uint32_t restart = 0;   ///< how often the job was queued again
  int call_timeout = 0;        ///< seconds for a system call; 0: default_call_timeout()
  std::vector<int> cpus;       ///< to run on; empty for all
  int watch_fd = -1;           ///< pipe: background staging ends when its other end is closed
  PutOptions put;              ///< without the functions, which the step sets
  Exchange::Options exchange;  ///< ports and networks; the step sets the rest
};

/// Returns when the step may start. If it may not, ends the process with code 1, after one line from here or
/// from srun has said why. In the background the calling process ends when the step may start.
void stage_step(const StepCall& call);

}  // namespace lockstep::transfer
