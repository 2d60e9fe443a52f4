// StopSignal notices the signals with which a cluster announces the end of a job, so that the loop can save a last
// checkpoint: SIGTERM, and the signal of Slurm's --signal.
//
//   lockstep::StopSignal stop(world);
//   …
//     optimizer.step();
//     if (stop.poll()) { checkpointer.save(step); checkpointer.wait(); stop.exit(); }
//
// The signals no longer end the process. One that lockstep-run got before it started the program counts too. Only one
// object may exist.
//
// Threads: the training thread.
#pragma once

#include <csignal>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/comm/world.h"

namespace lockstep {

class StopSignal {
 public:
  /// The exit code of a training that saved its state and wants to be started again: EX_TEMPFAIL.
  static constexpr int kExitCode = 75;

  /// Throws UsageError if there is another one.
  explicit StopSignal(World& world, const std::vector<int>& signals = {SIGTERM, SIGUSR1});
  /// Restores the handlers that were there before.
  ~StopSignal();
  StopSignal(const StopSignal&) = delete;
  StopSignal& operator=(const StopSignal&) = delete;

  /// Whether any rank has received a signal. All ranks call it once in each step, and get the same answer. It does not
  /// wait for other ranks: the signals that they had received when they began the step's synchronised backward travel
  /// with it. In a step without one they are exchanged while the next step runs, so a signal is seen a step later.
  bool poll();

  /// Ends the process with kExitCode, from any function: World::exit(). All ranks call it together, after
  /// Checkpointer::wait(). To end by a return from main instead, return kExitCode.
  [[noreturn]] void exit();

  /// The signal that was agreed on; 0 before.
  int signal() const { return agreed_; }

 private:
  World& world_;
  std::vector<std::pair<int, struct sigaction>> before_;
  std::uint64_t messages_;               // of synchronised backwards, at the last poll()
  std::shared_ptr<std::int32_t> asked_;  // without such a message: exchanged while the next step runs
  comm::WorkHandle work_;
  int agreed_ = 0;
};

}  // namespace lockstep
