// Stages a step's sources on one of its nodes, as the plugin requests it: puts them into the cache, links
// them into the job's folder, agrees with the step's other nodes, and reports the result.
//
// Threads: main's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "common/leaf/subnet.h"
#include "staging/rendezvous/rendezvous_outcome.h"
#include "staging/transfer/put_options.h"

namespace lockstep::transfer {

/// Whether the step waits until its data is staged, or reads from the source meanwhile.
enum class StepMode : std::uint8_t { block, background };
/// If staging fails, the step ends, or it reads from the source.
enum class OnError : std::uint8_t { fail, source };

struct StepCall {
  Hello hello;
  std::vector<std::string> sources;
  std::string cache, record, problem;
  Verify verify = Verify::quick;
  StepMode mode = StepMode::block;
  OnError on_error = OnError::fail;
  bool cooperate = true;
  std::uint64_t quota = 0, total = 0, bandwidth = 0;  // bytes, bytes a second; 0: no limit
  int keep = 600;                                     // seconds
  std::uint32_t restart = 0;                          // how often the job was queued again
  int source_patience = 0;                            // seconds for a system call; 0: default_call_timeout()
  std::string shared, lease, ports, cpus;
  std::vector<Subnet> peer_networks;  // as Exchange::Options
  int watch_fd = -1;                  // pipe: background staging ends when its other end is closed
  FileSystem* file_system = nullptr;  // as in PutOptions
};

/// Returns when the step may start. If it may not, ends the process with code 1, after one line from here or
/// from srun has said why. In the background the calling process ends when the step may start.
void stage_step(const StepCall& call);

}  // namespace lockstep::transfer
