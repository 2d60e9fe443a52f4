// Staging a step's sources on one of its nodes, as the plugin asks for it: put them, fill the job's folder of
// names, agree with the step's other nodes, and tell about it.
//
// Threads: main's thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/file_system.h"
#include "staging/rendezvous/rendezvous_outcome.h"

namespace lockstep::transfer {

struct StepCall {
  Hello hello;
  std::vector<std::string> sources;
  std::string cache, verify = "quick", record, problem;
  std::string mode = "block", on_error = "fail", cooperate = "on";
  std::uint64_t quota = 0, total = 0, bandwidth = 0;  // bytes, bytes a second; 0: no limit
  int keep = 600;                                     // seconds
  int source_patience = 0;  // seconds for a call at the source; 0: as HangWatch says
  std::string shared, lease, ports, cpus;
  int watch_fd = -1;                  // pipe whose end ends background staging
  FileSystem* file_system = nullptr;  // as in PutOptions
};

/// One line into the job's output, in one write.
void say_to_job(const std::string& text);

/// Returns when the step may start, or in the background when all is staged. Where it may not, ends the
/// process with 1 after one line, here or by srun, has said why.
void stage_step(const StepCall& call);

}  // namespace lockstep::transfer
