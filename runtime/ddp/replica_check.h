// Compares the trained parameters of all ranks every few steps, bit by bit. All ranks sum the same gradients, so
// their parameters stay equal as long as they compute alike. Ranks on different processors, or with different
// numbers of threads, may round differently; then the models drift apart, slowly and without any other sign.
//
// A check hashes the parameters once (on the CPU with LibTorch's threads). Ranks exchange one number, in the message of
// the step; between the checks a sample of the parameters, which costs little, takes the place of the hash.
//
// Threads: the training thread, and the thread that runs backward while the training thread waits for it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/ddp/options.h"
#include "runtime/ddp/replicas.h"

namespace lockstep::ddp {

class ReplicaCheck {
 public:
  /// `communicator` takes host memory; `parameters` takes memory of the parameters' device. Throws UsageError for a
  /// negative number of steps.
  ReplicaCheck(comm::Communicator& communicator, comm::Communicator& parameters,
               const DistributedDataParallelOptions& options);

  /// The parameters to compare from now on.
  void set_parameters(std::vector<NamedTensor> parameters) { parameters_ = std::move(parameters); }

  /// All ranks call it at the beginning of each synchronised backward. Returns the number to compare in this step: the
  /// hash if a check is due, else `sample` (0 if there is none, or if the user wishes no check).
  std::uint64_t begin(std::uint64_t sample);

  /// All ranks call it at the end of that backward if the numbers differ. Throws Error on all ranks, naming a rank, its
  /// node and a parameter; or, for ReplicaDrift::rebroadcast, gives all ranks rank 0's parameters. Then rank 0 prints
  /// that, in the same words: the first time, the second, the fourth, and so on.
  void finish(std::int64_t step);

 private:
  std::string describe(int rank, std::size_t ranks, const std::string& difference, std::int64_t step);

  comm::Communicator& communicator_;
  comm::Communicator& device_communicator_;
  std::int64_t every_;
  bool rebroadcasts_;
  std::uint64_t times_different_ = 0;
  std::int64_t steps_ = 0;
  std::vector<NamedTensor> parameters_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace lockstep::ddp
